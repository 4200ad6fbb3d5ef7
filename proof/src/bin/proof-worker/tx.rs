//! A real process for the crash matrix of transactions: does the work once, and is killed while it does so.
//!
//! `proof-worker tx once|phases|handle postgres|mysql|sqlite PLACE KEY`, where PLACE is `URL SCHEMA`, a URL or a path. It says on stdout what it
//! got. The points of [`semel::crash`] around the commit are its own, as a commit is the application's.

use std::process::ExitCode;
use std::time::Duration;

use rusqlite::TransactionBehavior;
use semel::crash::{AFTER_COMMIT, BEFORE_COMMIT, point};
use semel::inbox::{Identity, Inbox};
use semel::intent::fingerprint::{Fingerprint, Recipe};
use semel::tx::{Once, Phases, Started, TxError, once_tx};
use semel::{Intent, Key, Operation, Scope, blocking};
use sqlx::mysql::MySqlConnection;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};

type Failed = Box<dyn std::error::Error + Send + Sync>;

const NAMES: [&str; 2] = ["reserve", "charge"];
const LEASE: Duration = Duration::from_millis(400);

/// How long it waits for one that was killed: the server takes a moment to notice, on a busy machine several.
const WAIT: Duration = Duration::from_secs(30);

#[tokio::main]
pub(crate) async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(2).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["once", "postgres", url, schema, key] => once_postgres(url, schema, key).await,
        ["once", "mysql", url, key] => once_mysql(url, key).await,
        ["once", "sqlite", path, key] => once_sqlite(path, key),
        ["phases", "postgres", url, schema, key] => phases_postgres(url, schema, key).await,
        ["phases", "mysql", url, key] => phases_mysql(url, key).await,
        ["phases", "sqlite", path, key] => phases_sqlite(path, key),
        ["handle", "postgres", url, schema, key] => handle_postgres(url, schema, key).await,
        ["handle", "mysql", url, key] => handle_mysql(url, key).await,
        ["handle", "sqlite", path, key] => handle_sqlite(path, key),
        ["torn-mark", "postgres", url, schema, key] => torn_mark_postgres(url, schema, key).await,
        ["torn", "postgres", url, schema, key] => torn_postgres(url, schema, key).await,
        _ => Err("usage: proof-worker tx once|phases|handle postgres|mysql|sqlite …".into()),
    };
    match done {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn asked(key: &str) -> Result<(Intent, Fingerprint), Failed> {
    let intent = Intent::new(Scope::tenant("acme")?, Operation::new("payment.create")?, Key::new(key)?);
    Ok((intent, Recipe::default().value(&42)?))
}

async fn connect(url: &str, schema: &str) -> Result<PgConnection, Failed> {
    let options: PgConnectOptions = url.parse()?;
    Ok(options.options([("search_path", schema)]).connect().await?)
}

fn open(path: &str) -> Result<rusqlite::Connection, Failed> {
    let db = rusqlite::Connection::open(path)?;
    db.busy_timeout(Duration::from_secs(10))?;
    Ok(db)
}

async fn insert(tx: &mut PgConnection, name: &str) -> Result<String, sqlx::Error> {
    sqlx::query("INSERT INTO payment (name, cents) VALUES ($1, 42)").bind(name).execute(tx).await?;
    Ok(name.to_owned())
}

async fn insert_mysql(tx: &mut MySqlConnection, name: &str) -> Result<String, sqlx::Error> {
    sqlx::query("INSERT INTO payment (name, cents) VALUES (?, 42)").bind(name).execute(tx).await?;
    Ok(name.to_owned())
}

fn insert_now(tx: &rusqlite::Connection, name: &str) -> rusqlite::Result<String> {
    tx.execute("INSERT INTO payment (name, cents) VALUES (?1, 42)", [name])?;
    Ok(name.to_owned())
}

fn result_line(replayed: bool) -> &'static str {
    if replayed { "replayed" } else { "ran" }
}

async fn once_postgres(url: &str, schema: &str, key: &str) -> Result<&'static str, Failed> {
    let (intent, asked) = asked(key)?;
    let mut connection = connect(url, schema).await?;
    let mut tx = connection.begin().await?;
    let once = Once::new(&intent, asked).wait(WAIT);
    let reply = once.run_tx(&mut tx, async |tx| insert(tx, key).await).await?;
    point(BEFORE_COMMIT);
    tx.commit().await?;
    point(AFTER_COMMIT);
    Ok(result_line(reply.replayed))
}

async fn once_mysql(url: &str, key: &str) -> Result<&'static str, Failed> {
    let (intent, asked) = asked(key)?;
    let mut connection = MySqlConnection::connect(url).await?;
    let mut tx = connection.begin().await?;
    let once = Once::new(&intent, asked).wait(WAIT);
    let reply = once.run_tx(&mut tx, async |tx| insert_mysql(tx, key).await).await?;
    point(BEFORE_COMMIT);
    tx.commit().await?;
    point(AFTER_COMMIT);
    Ok(result_line(reply.replayed))
}

fn once_sqlite(path: &str, key: &str) -> Result<&'static str, Failed> {
    let (intent, asked) = asked(key)?;
    let mut db = open(path)?;
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let reply = blocking::once_tx(&tx, &intent, asked, |tx| insert_now(tx, key))?;
    point(BEFORE_COMMIT);
    tx.commit()?;
    point(AFTER_COMMIT);
    Ok(result_line(reply.replayed))
}

/// What the matrix has to catch: the outcome is written in another transaction than the rows.
async fn torn_postgres(url: &str, schema: &str, key: &str) -> Result<&'static str, Failed> {
    let (intent, asked) = asked(key)?;
    let (mut connection, mut other) = (connect(url, schema).await?, connect(url, schema).await?);
    let mut tx = connection.begin().await?;
    let reply = once_tx(&mut tx, &intent, asked, async |_| {
        insert(&mut other, key).await?;
        Ok::<_, sqlx::Error>(key.to_owned())
    })
    .await?;
    point(BEFORE_COMMIT);
    tx.commit().await?;
    Ok(result_line(reply.replayed))
}

/// A message, and the inbox of its consumer.
fn came(key: &str) -> Result<(Inbox, Identity), Failed> {
    Ok((Inbox::new("payer")?, Identity::new("orders", key)?))
}

async fn handle_postgres(url: &str, schema: &str, key: &str) -> Result<&'static str, Failed> {
    let (inbox, message) = came(key)?;
    let mut connection = connect(url, schema).await?;
    let mut tx = connection.begin().await?;
    let handled = inbox.handle_tx(&mut tx, &message, async |tx| insert(tx, key).await).await?;
    point(BEFORE_COMMIT);
    tx.commit().await?;
    point(AFTER_COMMIT);
    Ok(result_line(handled.is_already()))
}

async fn handle_mysql(url: &str, key: &str) -> Result<&'static str, Failed> {
    let (inbox, message) = came(key)?;
    let mut connection = MySqlConnection::connect(url).await?;
    let mut tx = connection.begin().await?;
    let handled = inbox.handle_tx(&mut tx, &message, async |tx| insert_mysql(tx, key).await).await?;
    point(BEFORE_COMMIT);
    tx.commit().await?;
    point(AFTER_COMMIT);
    Ok(result_line(handled.is_already()))
}

fn handle_sqlite(path: &str, key: &str) -> Result<&'static str, Failed> {
    let (inbox, message) = came(key)?;
    let mut db = open(path)?;
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let handled = blocking::handle_tx(&inbox, &tx, &message, |tx| insert_now(tx, key))?;
    point(BEFORE_COMMIT);
    tx.commit()?;
    point(AFTER_COMMIT);
    Ok(result_line(handled.is_already()))
}

/// What the matrix has to catch: the mark is committed before the effect.
async fn torn_mark_postgres(url: &str, schema: &str, key: &str) -> Result<&'static str, Failed> {
    let (inbox, message) = came(key)?;
    let (mut connection, mut other) = (connect(url, schema).await?, connect(url, schema).await?);
    let mut mark = other.begin().await?;
    let handled = inbox.handle_tx(&mut mark, &message, async |_| Ok::<_, sqlx::Error>(())).await?;
    mark.commit().await?;
    let mut tx = connection.begin().await?;
    if !handled.is_already() {
        insert(&mut tx, key).await?;
    }
    point(BEFORE_COMMIT);
    tx.commit().await?;
    Ok(result_line(handled.is_already()))
}

async fn phases_postgres(url: &str, schema: &str, key: &str) -> Result<&'static str, Failed> {
    let (intent, asked) = asked(key)?;
    let phases = Phases::new(&intent, asked, &NAMES)?.lease(LEASE);
    let (mut connection, mut provider) = (connect(url, schema).await?, connect(url, schema).await?);
    let mut tx = connection.begin().await?;
    let mut run = match phases.start_tx::<_, String>(&mut tx).await {
        Ok(Started::Run(run)) => run,
        Ok(Started::Replay(_)) => return Ok("replayed"),
        Err(TxError::InFlight { .. }) => return Ok("in flight"),
        Err(error) => return Err(error.into()),
    };
    let row = format!("{key}-reserve");
    run.phase_tx(&mut tx, "reserve", async |tx| insert(tx, &row).await).await?;
    point(BEFORE_COMMIT);
    tx.commit().await?;
    point(AFTER_COMMIT);
    // The provider honours keys.
    let charge =
        "INSERT INTO charge (key) VALUES ($1) ON CONFLICT (key) DO UPDATE SET asked = charge.asked + 1";
    sqlx::query(charge).bind(run.child("charge").as_str()).execute(&mut provider).await?;
    let mut tx = connection.begin().await?;
    let row = format!("{key}-charge");
    run.phase_tx(&mut tx, "charge", async |tx| insert(tx, &row).await).await?;
    point(BEFORE_COMMIT);
    tx.commit().await?;
    point(AFTER_COMMIT);
    Ok("ran")
}

async fn phases_mysql(url: &str, key: &str) -> Result<&'static str, Failed> {
    let (intent, asked) = asked(key)?;
    let phases = Phases::new(&intent, asked, &NAMES)?.lease(LEASE);
    let (mut connection, mut provider) =
        (MySqlConnection::connect(url).await?, MySqlConnection::connect(url).await?);
    let mut tx = connection.begin().await?;
    let mut run = match phases.start_tx::<_, String>(&mut tx).await {
        Ok(Started::Run(run)) => run,
        Ok(Started::Replay(_)) => return Ok("replayed"),
        Err(TxError::InFlight { .. }) => return Ok("in flight"),
        Err(error) => return Err(error.into()),
    };
    let row = format!("{key}-reserve");
    run.phase_tx(&mut tx, "reserve", async |tx| insert_mysql(tx, &row).await).await?;
    point(BEFORE_COMMIT);
    tx.commit().await?;
    point(AFTER_COMMIT);
    // The provider honours keys.
    let charge = "INSERT INTO charge (`key`) VALUES (?) ON DUPLICATE KEY UPDATE asked = asked + 1";
    sqlx::query(charge).bind(run.child("charge").as_str()).execute(&mut provider).await?;
    let mut tx = connection.begin().await?;
    let row = format!("{key}-charge");
    run.phase_tx(&mut tx, "charge", async |tx| insert_mysql(tx, &row).await).await?;
    point(BEFORE_COMMIT);
    tx.commit().await?;
    point(AFTER_COMMIT);
    Ok("ran")
}

fn phases_sqlite(path: &str, key: &str) -> Result<&'static str, Failed> {
    let (intent, asked) = asked(key)?;
    let phases = Phases::new(&intent, asked, &NAMES)?.lease(LEASE);
    let (mut db, provider) = (open(path)?, open(path)?);
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut run = match blocking::start_tx::<String>(&phases, &tx) {
        Ok(Started::Run(run)) => run,
        Ok(Started::Replay(_)) => return Ok("replayed"),
        Err(TxError::InFlight { .. }) => return Ok("in flight"),
        Err(error) => return Err(error.into()),
    };
    blocking::phase_tx(&mut run, &tx, "reserve", |tx| insert_now(tx, &format!("{key}-reserve")))?;
    point(BEFORE_COMMIT);
    tx.commit()?;
    point(AFTER_COMMIT);
    let charge = "INSERT INTO charge (key) VALUES (?1) ON CONFLICT (key) DO UPDATE SET asked = asked + 1";
    provider.execute(charge, [run.child("charge").as_str()])?;
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    blocking::phase_tx(&mut run, &tx, "charge", |tx| insert_now(tx, &format!("{key}-charge")))?;
    point(BEFORE_COMMIT);
    tx.commit()?;
    point(AFTER_COMMIT);
    Ok("ran")
}
