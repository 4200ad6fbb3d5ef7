//! A shop with sagas that park, in a SQLite file.

use std::time::Duration;

use semel::saga::sql::SqlJournal;
use semel::saga::{
    At, Definition, HasUndo, NoUndo, NothingToUndo, ProtectedJournal, Refused, Registered, Saga, SagaError,
    SagaNumber, SagaOptions, SagaResult, SagaStep, Sagas, SagasBuilder, StepError, StepResult, StepSpec,
    StepType,
};
use semel::store::protect::{Keys, Protection};
use semel::{Key, Scope};
use tempfile::TempDir;

use crate::semel_binary::{Ran, semel};

/// The participants: whether they answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Participants {
    Answer,
    /// Charges get lost, releases are refused.
    Break,
}

/// Reserves stock: keyed, with an undo.
struct Reserve;

impl StepType for Reserve {
    type Input = String;
    type Output = u32;
    type Undo = HasUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::keyed("reserve").safe_for(Duration::from_secs(24 * 3_600))
    }
}

impl SagaStep<Participants> for Reserve {
    async fn run(&self, _at: At<'_, Participants>, _sku: &String) -> StepResult<u32> {
        Ok(7)
    }

    async fn undo(&self, at: At<'_, Participants>, _sku: &String, _held: Option<u32>) -> StepResult<()> {
        match at.app {
            Participants::Answer => Ok(()),
            Participants::Break => Err(StepError::refused("the stock is \u{1b}[31mlocked")),
        }
    }
}

/// Charges: opaque.
struct Charge;

impl StepType for Charge {
    type Input = u64;
    type Output = String;
    type Undo = NoUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::opaque("charge")
    }
}

impl SagaStep<Participants> for Charge {
    async fn run(&self, at: At<'_, Participants>, _cents: &u64) -> StepResult<String> {
        match at.app {
            Participants::Answer => Ok("ch_1".to_owned()),
            Participants::Break => Err(StepError::unknown("connection reset")),
        }
    }
}

/// Tells a warehouse: opaque, and harmless.
struct Tell;

impl StepType for Tell {
    type Input = u64;
    type Output = ();
    type Undo = NothingToUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::opaque("tell")
    }
}

impl SagaStep<Participants> for Tell {
    async fn run(&self, at: At<'_, Participants>, _cents: &u64) -> StepResult<()> {
        match at.app {
            Participants::Answer => Ok(()),
            Participants::Break => Err(StepError::unknown("connection reset")),
        }
    }
}

/// Its pivot is the charge.
async fn checkout(saga: Saga<Participants>, sku: String) -> SagaResult<String> {
    saga.run(Reserve, sku).await?;
    let (paid, _) = saga.pivot(Charge, 1_250).await?;
    Ok(paid)
}

/// Has no pivot.
async fn gift(saga: Saga<Participants>, sku: String) -> SagaResult<String> {
    saga.run(Reserve, sku).await?;
    saga.run(Tell, 0).await?;
    Ok("sent".to_owned())
}

/// Tells two at once.
async fn pair(saga: Saga<Participants>, _sku: String) -> SagaResult<String> {
    let (one, two) = tokio::join!(saga.run(Tell, 1), saga.run(Tell, 2));
    one?;
    two?;
    Ok("both".to_owned())
}

/// Waits for somebody.
async fn loan(saga: Saga<Participants>, sku: String) -> SagaResult<String> {
    saga.run(Reserve, sku).await?;
    let said: Option<String> = saga.signal("approval", None).await;
    Ok(said.unwrap_or_default())
}

/// Waits for a person's yes or no.
async fn credit(saga: Saga<Participants>, sku: String) -> SagaResult<String> {
    saga.run(Reserve, sku).await?;
    let decided = saga.approval("manager", None).await;
    let by = decided.ok_or_else(|| Refused::new("no decision"))?.granted()?;
    Ok(format!("by {}: {}", by.by, by.why))
}

/// A database with sagas.
pub(crate) struct Shop {
    directory: TempDir,
    /// Its values are sealed.
    sealed: bool,
}

/// The key of a sealed shop.
pub(crate) const KEY: &str = "2026-11 8c5bbd3c1d7c4b2e9f3e6f0f2b7a4d1e8c5bbd3c1d7c4b2e9f3e6f0f2b7a4d1e";

/// One process that runs them.
pub(crate) struct Worker {
    sagas: Sagas<Participants>,
    checkout: Registered<String, String>,
    credit: Registered<String, String>,
    gift: Registered<String, String>,
    loan: Registered<String, String>,
    pair: Registered<String, String>,
}

impl Worker {
    async fn new(shop: &Shop, participants: Participants) -> Self {
        let journal = SqlJournal::open(&shop.url()).await.unwrap();
        let protection = match shop.sealed {
            true => Protection::none().seal(Keys::parse(KEY).unwrap()),
            false => Protection::none(),
        };
        let journal = ProtectedJournal::new(journal, protection);
        let mut options = SagaOptions::default();
        options.poll_interval = Duration::from_millis(20);
        let mut builder = SagasBuilder::new(journal, participants).options(options);
        let checkout =
            builder.register(Definition::new("checkout", 1, checkout).step(Reserve).step(Charge)).unwrap();
        let gift = builder.register(Definition::new("gift", 1, gift).step(Reserve).step(Tell)).unwrap();
        let loan = builder.register(Definition::new("loan", 1, loan).step(Reserve)).unwrap();
        let credit = builder.register(Definition::new("credit", 1, credit).step(Reserve)).unwrap();
        let pair = builder.register(Definition::new("pair", 1, pair).step(Tell)).unwrap();
        Self { sagas: builder.start(), checkout, credit, gift, loan, pair }
    }

    fn registered(&self, name: &str) -> &Registered<String, String> {
        match name {
            "checkout" => &self.checkout,
            "credit" => &self.credit,
            "gift" => &self.gift,
            "pair" => &self.pair,
            _ => &self.loan,
        }
    }
}

impl Shop {
    /// The tables alone.
    pub(crate) fn new() -> Self {
        Self::with(false)
    }

    /// The same, for values that are sealed.
    pub(crate) fn sealed() -> Self {
        Self::with(true)
    }

    fn with(sealed: bool) -> Self {
        let shop = Self { directory: testkit::scratch::directory(), sealed };
        assert_eq!(semel(&["migrate", "--saga", &shop.url()]).out(), "saga: created, version 1\n");
        shop
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.directory.path().join("shop.db").display())
    }

    /// The file with the key of a sealed shop, as `--keys` takes it.
    pub(crate) fn keys(&self) -> String {
        let path = self.directory.path().join("keys");
        std::fs::write(&path, KEY).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        format!("file:{}", path.display())
    }

    /// `semel saga COMMAND URL …`
    pub(crate) fn saga(&self, command: &str, args: &[&str]) -> Ran {
        semel(&[&["saga", command, &self.url()], args].concat())
    }

    /// A decision with who and why.
    pub(crate) fn decide(&self, command: &str, args: &[&str]) -> Ran {
        self.saga(command, &[args, &["--by", "ana", "--why", "I looked"]].concat())
    }

    /// The command lines that `show` proposes, filled in.
    pub(crate) fn run_proposed(&self, line: &str, json: &str) -> Ran {
        let words = line.split_whitespace().skip(1).map(|word| match word {
            "NAME" => "ana",
            "TEXT" => "looked",
            "JSON" => json,
            word => word,
        });
        semel(&words.collect::<Vec<_>>())
    }

    /// Starts a saga of that name and waits until it parks, ends, or waits for a signal. Returns its number.
    pub(crate) fn start(&self, name: &str, key: &str) -> u64 {
        block_on(async {
            let worker = Worker::new(self, Participants::Break).await;
            let of = worker.registered(name);
            let scope = Scope::tenant("acme").unwrap();
            let number =
                worker.sagas.submit(of, &scope, &Key::new(key).unwrap(), &"book".to_owned()).await.unwrap();
            if matches!(name, "credit" | "loan") {
                self.wait_for(number, "waiting").await;
            } else {
                let parked = worker.sagas.end(of, number).await;
                assert!(matches!(parked, Err(SagaError::Parked { .. })), "{parked:?}");
            }
            worker.sagas.drain(Duration::from_secs(5)).await;
            number.0
        })
    }

    /// Runs a worker until the saga has that status.
    pub(crate) fn work(&self, number: u64, participants: Participants, status: &str) {
        block_on(async {
            let worker = Worker::new(self, participants).await;
            self.wait_for(SagaNumber(number), status).await;
            worker.sagas.drain(Duration::from_secs(5)).await;
        });
    }

    pub(crate) fn status(&self, number: u64) -> String {
        let shown = self.saga("show", &[&number.to_string(), "--json"]).json();
        shown["status"].as_str().unwrap().to_owned()
    }

    async fn wait_for(&self, number: SagaNumber, status: &str) {
        use semel::saga::Journal;
        let journal = SqlJournal::open(&self.url()).await.unwrap();
        let reached = async {
            while journal.load(number).await.unwrap().unwrap().record.row.status.as_str() != status {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), reached).await.expect("it never comes to that status");
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}
