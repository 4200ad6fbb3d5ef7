//! A real process for the crash matrix of sagas: it orders once, and is killed while it does so.
//!
//! `proof-worker saga URL LEDGER KEY completes|refused|parked|torn [sqlx]`. The order is a row of the database, written by an atomic
//! step; stock (keyed), bank (opaque, the pivot) and mail (keyed) write lines into the file LEDGER. It says on stdout how
//! the saga ended. `sqlx`: atomic steps run over a pool of sqlx. The bank refuses where the saga is to be undone; without a lookup a charge in doubt is parked.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use semel::crash::{BEFORE_COMMIT, point};
use semel::outbox::Event;
use semel::saga::sql::SqlJournal;
use semel::saga::{
    At, AtomicStep, Definition, HasUndo, LookedUp, NoUndo, Saga, SagaEnd, SagaError, SagaOptions, SagaResult,
    SagaStep, SagasBuilder, StepError, StepResult, StepSpec, StepTx, StepType,
};
use semel::{Key, Scope};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_millis(500);
/// How long after that the ledger may still get a line of it.
const SETTLE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, PartialEq)]
enum What {
    Completes,
    Refused,
    Parked,
    /// Planted: the order's row is committed apart from the journal.
    Torn,
}

struct App {
    url: String,
    ledger: PathBuf,
    what: What,
}

impl App {
    /// One line, whole, and there whatever becomes of this process.
    fn write(&self, what: &str, key: &Key) -> StepResult<()> {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&self.ledger)?;
        file.write_all(format!("{what} {key}\n", key = key.as_str()).as_bytes())?;
        file.sync_all()?;
        Ok(())
    }

    fn has(&self, what: &str, key: &Key) -> bool {
        let line = format!("{what} {key}", key = key.as_str());
        std::fs::read_to_string(&self.ledger).is_ok_and(|text| text.lines().any(|known| known == line))
    }
}

struct Create;

impl StepType for Create {
    type Input = String;
    type Output = String;
    type Undo = HasUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::atomic("create").timeout(TIMEOUT * 10)
    }
}

impl AtomicStep<App> for Create {
    async fn run(&self, tx: &mut StepTx<'_>, at: At<'_, App>, name: &String) -> StepResult<String> {
        if at.app.what == What::Torn {
            apart(&at.app.url, name).await?;
        } else {
            insert(tx, name, "created").await?;
        }
        point(BEFORE_COMMIT);
        Ok(name.clone())
    }

    async fn undo(&self, tx: &mut StepTx<'_>, _: At<'_, App>, name: &String, _: String) -> StepResult<()> {
        insert(tx, name, "cancelled").await?;
        point(BEFORE_COMMIT);
        Ok(())
    }
}

/// In the step's transaction, by the driver's own means.
async fn insert(tx: &mut StepTx<'_>, name: &str, what: &str) -> StepResult<()> {
    if let Some(tx) = tx.postgres() {
        tx.execute("INSERT INTO orders (name, what) VALUES ($1, $2)", &[&name, &what]).await?;
    } else if let Some(tx) = tx.sqlx_postgres() {
        let insert = sqlx::query("INSERT INTO orders (name, what) VALUES ($1, $2)");
        insert.bind(name).bind(what).execute(tx).await?;
    } else if let Some(tx) = tx.mysql() {
        let insert = sqlx::query("INSERT INTO orders (name, what) VALUES (?, ?)");
        insert.bind(name).bind(what).execute(tx).await?;
    } else if let Some(db) = tx.sqlite() {
        db.execute("INSERT INTO orders (name, what) VALUES (?1, ?2)", [name, what])?;
    } else {
        return Err(StepError::refused("there is no database"));
    }
    Ok(())
}

fn server_and_schema(url: &str) -> (&str, &str) {
    let (server, rest) = url.split_once("?schema=").unwrap_or((url, "public"));
    (server, rest.split('&').next().unwrap_or(rest))
}

async fn pool(url: &str) -> Result<PgPool, sqlx::Error> {
    let (server, schema) = server_and_schema(url);
    let options: PgConnectOptions = server.parse()?;
    PgPoolOptions::new().max_connections(2).connect_with(options.options([("search_path", schema)])).await
}

/// Planted: in a transaction of its own.
async fn apart(url: &str, name: &str) -> Result<(), tokio_postgres::Error> {
    let (server, schema) = server_and_schema(url);
    let (client, connection) = tokio_postgres::connect(server, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let insert = format!("INSERT INTO {schema}.orders (name, what) VALUES ($1, 'created')");
    client.execute(&insert, &[&name]).await?;
    Ok(())
}

struct Hold;

impl StepType for Hold {
    type Input = String;
    type Output = String;
    type Undo = HasUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::keyed("hold").timeout(TIMEOUT).settle(SETTLE)
    }
}

impl SagaStep<App> for Hold {
    async fn run(&self, at: At<'_, App>, name: &String) -> StepResult<String> {
        at.app.write(&format!("hold {name}"), at.key())?;
        Ok(name.clone())
    }

    async fn undo(&self, at: At<'_, App>, name: &String, _: Option<String>) -> StepResult<()> {
        at.app.write(&format!("release {name}"), at.key())
    }
}

struct Charge {
    lookup: bool,
}

impl StepType for Charge {
    type Input = String;
    type Output = String;
    type Undo = NoUndo;

    fn spec(&self) -> StepSpec {
        let spec = StepSpec::opaque("charge").timeout(TIMEOUT).settle(SETTLE);
        if self.lookup { spec.with_lookup() } else { spec }
    }
}

impl SagaStep<App> for Charge {
    async fn run(&self, at: At<'_, App>, name: &String) -> StepResult<String> {
        if at.app.what == What::Refused {
            return Err(StepError::refused("no money"));
        }
        at.app.write(&format!("charge {name}"), at.key())?;
        Ok(name.clone())
    }

    async fn look_up(&self, at: At<'_, App>, name: &String) -> LookedUp<String> {
        match at.app.has(&format!("charge {name}"), at.key()) {
            true => LookedUp::Applied(name.clone()),
            false => LookedUp::NotApplied,
        }
    }
}

struct Mail;

impl StepType for Mail {
    type Input = String;
    type Output = String;
    type Undo = NoUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::keyed("mail").timeout(TIMEOUT).settle(SETTLE)
    }
}

impl SagaStep<App> for Mail {
    async fn run(&self, at: At<'_, App>, name: &String) -> StepResult<String> {
        at.app.write(&format!("mail {name}"), at.key())?;
        Ok(name.clone())
    }
}

async fn order(saga: Saga<App>, name: String) -> SagaResult<String> {
    let lookup = saga.app().what != What::Parked;
    saga.run(Create, name.clone()).await?;
    saga.run(Hold, name.clone()).await?;
    let (_, saga) = saga.pivot(Charge { lookup }, name.clone()).await?;
    saga.publish(Event::new("orders", "order.paid", name.clone()).expect("a valid event"));
    saga.run(Mail, name.clone()).await;
    Ok(name)
}

#[tokio::main]
pub(crate) async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(2).collect();
    let (args, over_sqlx) = match &args[..] {
        [args @ .., last] if last == "sqlx" => (args, true),
        args => (args, false),
    };
    let [url, ledger, key, what] = args else {
        eprintln!("usage: proof-worker saga URL LEDGER KEY completes|refused|parked|torn [sqlx]");
        return ExitCode::from(2);
    };
    match run(url, ledger, key, what, over_sqlx).await {
        Ok(end) => {
            println!("{end}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(
    url: &str,
    ledger: &str,
    key: &str,
    what: &str,
    over_sqlx: bool,
) -> Result<&'static str, Failed> {
    let what = match what {
        "completes" => What::Completes,
        "refused" => What::Refused,
        "parked" => What::Parked,
        "torn" => What::Torn,
        other => return Err(format!("{other:?} is not completes, refused, parked or torn").into()),
    };
    let mut journal = SqlJournal::open(url).await?;
    if over_sqlx {
        journal = journal.steps_over(pool(url).await?).await?;
    }
    let mut options = SagaOptions::default();
    (options.poll_interval, options.wait) = (Duration::from_millis(50), Duration::from_secs(50));
    let app = App { url: url.to_owned(), ledger: ledger.into(), what };
    let mut sagas = SagasBuilder::new(journal, app).options(options);
    let lookup = what != What::Parked;
    let definition =
        Definition::new("order", 1, order).atomic(Create).step(Hold).step(Charge { lookup }).step(Mail);
    let registered = sagas.register(definition)?;
    let sagas = sagas.start();
    let end = sagas.once(&registered, &Scope::tenant("acme")?, &Key::new(key)?, &key.to_owned()).await;
    let end = match end {
        Ok(SagaEnd::Completed(_)) => "completed",
        Ok(SagaEnd::Undone { .. }) => "undone",
        Ok(SagaEnd::Abandoned) => "abandoned",
        Err(SagaError::Parked { .. }) => "parked",
        Err(error) => return Err(error.into()),
    };
    sagas.drain(Duration::from_secs(5)).await;
    Ok(end)
}
