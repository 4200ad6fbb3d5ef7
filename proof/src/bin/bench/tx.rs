//! The same business transaction with and without what semel adds to it, in alternating rounds of one run: `once_tx` to
//! one of two rows and to one of eight (a payment with its postings), `append_tx` to one of two.

use std::sync::Arc;
use std::time::Instant;

use semel::intent::fingerprint::Fingerprint;
use semel::outbox::{self, Event, append_tx};
use semel::tx::driver::Dialect;
use semel::tx::once_tx;
use semel::{Intent, store::postgres};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use testkit::services::{Service, find};
use tokio::runtime::Runtime;

use crate::Failed;
use crate::load;
use crate::table::Table;

const SCHEMA: &str = "semel_bench_tx";
const TABLES: &str = "
    CREATE TABLE account (id bigint PRIMARY KEY, cents bigint NOT NULL);
    CREATE TABLE payment (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account bigint NOT NULL, cents bigint NOT NULL);
    CREATE TABLE note (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account bigint NOT NULL, body bytea NOT NULL);
    INSERT INTO account SELECT n, 0 FROM generate_series(0, 63) n;
";
const UPDATE: &str = "UPDATE account SET cents = cents + $2 WHERE id = $1";
const INSERT: &str = "INSERT INTO payment (account, cents) VALUES ($1, $2) RETURNING id";
/// What a service without an outbox would write: the same bytes, in a table of its own.
const NOTE: &str = "INSERT INTO note (account, body) VALUES ($1, $2)";
const ROUNDS: usize = 5;

pub(crate) fn measure(runtime: &Runtime, size: usize, table: &mut Table) -> Result<(), Failed> {
    let Some(url) = find(Service::Postgres) else {
        eprintln!("left out: PostgreSQL is not running (cargo xtask services up --only postgres)");
        return Ok(());
    };
    let loads = [(1, 2), (1, 8), (16, 2), (16, 8)];
    runtime.block_on(measure_added(&url, Added::Once, &loads, size, table))
}

/// What it costs to tell others: an event in the same transaction.
#[cfg(feature = "relay")]
pub(crate) async fn measure_append(url: &str, size: usize, table: &mut Table) -> Result<(), Failed> {
    measure_added(url, Added::Append, &[(1, 2), (16, 2)], size, table).await
}

async fn measure_added(
    url: &str,
    added: Added,
    loads: &[(usize, usize)],
    size: usize,
    table: &mut Table,
) -> Result<(), Failed> {
    let client = plain(url).await?;
    client.batch_execute(&format!("DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA}")).await?;
    let client = connect(url).await?;
    client.batch_execute(postgres::SQL).await?;
    client.batch_execute(TABLES).await?;
    client.batch_execute(outbox::schema(Dialect::Postgres)).await?;
    for &(tasks, rows) in loads {
        let load = Load { tasks, rows, each: (if tasks == 1 { 120 } else { 60 }) * size, added };
        over_sqlx(url, load, table).await?;
        over_tokio_postgres(url, load, table).await?;
    }
    plain(url).await?.batch_execute(&format!("DROP SCHEMA {SCHEMA} CASCADE")).await?;
    Ok(())
}

/// What is added to a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Added {
    Nothing,
    /// One more row of the service's own, by a statement of its own.
    Row,
    Once,
    #[cfg_attr(not(feature = "relay"), allow(dead_code))]
    Append,
}

impl Added {
    /// What is measured by turns.
    fn turns(self) -> &'static [Self] {
        match self {
            Self::Nothing | Self::Row => &[Self::Nothing, Self::Row],
            Self::Once => &[Self::Nothing, Self::Once],
            Self::Append => &[Self::Nothing, Self::Row, Self::Append],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Row => "a third row",
            Self::Once => "once_tx",
            Self::Append => "append_tx",
        }
    }
}

async fn plain(url: &str) -> Result<tokio_postgres::Client, Failed> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn connect(url: &str) -> Result<tokio_postgres::Client, Failed> {
    let client = plain(url).await?;
    client.batch_execute(&format!("SET search_path = {SCHEMA}")).await?;
    Ok(client)
}

#[derive(Clone, Copy)]
struct Load {
    tasks: usize,
    /// Of one transaction: half of them updated, half inserted, a statement each.
    rows: usize,
    each: usize,
    added: Added,
}

/// Transactions per second of each kind, by turns; the best round of each counts.
#[derive(Default)]
struct Rates(Vec<(Added, f64)>);

impl Rates {
    fn note(&mut self, added: Added, transactions: usize, begin: Instant) {
        let rate = transactions as f64 / begin.elapsed().as_secs_f64();
        match self.0.iter_mut().find(|(kind, _)| *kind == added) {
            Some((_, best)) => *best = best.max(rate),
            None => self.0.push((added, rate)),
        }
    }

    fn tell(&self, driver: &str, Load { tasks, rows, .. }: Load, table: &mut Table) {
        let name = |what: &str| format!("tx: {driver}, {tasks} task(s), {what}");
        let bare = self.0.first().map_or(f64::NAN, |(_, rate)| *rate);
        for (added, rate) in &self.0 {
            match added {
                Added::Nothing => {
                    table.row(&name(&format!("{rows} rows, one commit")), *rate, "/s", "the floor");
                }
                added => {
                    let note = format!("{:+.1} % time", (bare / rate - 1.0) * 100.0);
                    table.row(&name(&format!("the same with {}", added.name())), *rate, "/s", note);
                }
            }
        }
    }
}

fn asked(name: &str) -> Result<(Intent, Fingerprint), Failed> {
    Ok((load::intent(name)?, load::fingerprint()))
}

/// 256 bytes about a payment.
fn body(payment: i64) -> String {
    format!("{{\"payment\":{payment},\"note\":\"{:x<220}\"}}", "")
}

fn event(account: i64, payment: i64) -> Result<Event, Failed> {
    Ok(Event::new("payments", "payment.completed", body(payment))?.key(&format!("account-{account}"))?)
}

async fn over_sqlx(url: &str, load: Load, table: &mut Table) -> Result<(), Failed> {
    let Load { tasks, rows, each, added } = load;
    let options: PgConnectOptions = url.parse()?;
    let options = options.options([("search_path", SCHEMA)]);
    let connections = u32::try_from(tasks)?;
    let pool =
        PgPoolOptions::new().min_connections(connections).max_connections(connections).connect_with(options);
    let (pool, mut rates) = (pool.await?, Rates::default());
    // The first round warms connections and caches, and does not count.
    for round in 0..=ROUNDS {
        for &added in added.turns() {
            let begin = Instant::now();
            let running: Vec<_> = (0..tasks)
                .map(|task| {
                    let pool = pool.clone();
                    tokio::spawn(async move {
                        for n in 0..each {
                            let name = format!("sqlx-{tasks}-{rows}-{round}-{task}-{n}");
                            sqlx_pay(&pool, task as i64, rows, added, &name).await?;
                        }
                        Ok::<_, Failed>(())
                    })
                })
                .collect();
            for task in running {
                task.await??;
            }
            if round > 0 {
                rates.note(added, tasks * each, begin);
            }
        }
    }
    pool.close().await;
    rates.tell("sqlx", load, table);
    Ok(())
}

async fn sqlx_pay(pool: &PgPool, account: i64, rows: usize, added: Added, name: &str) -> Result<(), Failed> {
    let work = async |tx: &mut sqlx::PgConnection| {
        let mut last = 0;
        for _ in 0..rows / 2 {
            sqlx::query(UPDATE).bind(account).bind(1i64).execute(&mut *tx).await?;
            last = sqlx::query_scalar::<_, i64>(INSERT).bind(account).bind(1i64).fetch_one(&mut *tx).await?;
        }
        Ok::<i64, sqlx::Error>(last)
    };
    let mut tx = pool.begin().await?;
    match added {
        Added::Nothing => drop(work(&mut tx).await?),
        Added::Row => {
            let payment = work(&mut tx).await?;
            sqlx::query(NOTE).bind(account).bind(body(payment).as_bytes()).execute(&mut *tx).await?;
        }
        Added::Once => {
            let (intent, asked) = asked(name)?;
            once_tx(&mut tx, &intent, asked, work).await?;
        }
        Added::Append => {
            let payment = work(&mut tx).await?;
            append_tx(&mut tx, &event(account, payment)?).await?;
        }
    }
    tx.commit().await?;
    Ok(())
}

struct Session {
    client: tokio_postgres::Client,
    update: tokio_postgres::Statement,
    insert: tokio_postgres::Statement,
    note: tokio_postgres::Statement,
}

async fn over_tokio_postgres(url: &str, load: Load, table: &mut Table) -> Result<(), Failed> {
    let Load { tasks, rows, each, added } = load;
    let mut sessions = Vec::new();
    for _ in 0..tasks {
        let client = connect(url).await?;
        let (update, insert) = (client.prepare(UPDATE).await?, client.prepare(INSERT).await?);
        let note = client.prepare(NOTE).await?;
        sessions.push(Arc::new(tokio::sync::Mutex::new(Session { client, update, insert, note })));
    }
    let mut rates = Rates::default();
    for round in 0..=ROUNDS {
        for &added in added.turns() {
            let begin = Instant::now();
            let running: Vec<_> = sessions
                .iter()
                .enumerate()
                .map(|(task, session)| {
                    let session = Arc::clone(session);
                    tokio::spawn(async move {
                        let mut session = session.lock().await;
                        for n in 0..each {
                            let name = format!("plain-{tasks}-{rows}-{round}-{task}-{n}");
                            plain_pay(&mut session, task as i64, rows, added, &name).await?;
                        }
                        Ok::<_, Failed>(())
                    })
                })
                .collect();
            for task in running {
                task.await??;
            }
            if round > 0 {
                rates.note(added, tasks * each, begin);
            }
        }
    }
    rates.tell("tokio_postgres", load, table);
    Ok(())
}

async fn plain_pay(
    session: &mut Session,
    account: i64,
    rows: usize,
    added: Added,
    name: &str,
) -> Result<(), Failed> {
    let Session { client, update, insert, note } = session;
    let work = async |tx: &tokio_postgres::Transaction<'_>| {
        let mut last = 0;
        for _ in 0..rows / 2 {
            tx.execute(&*update, &[&account, &1i64]).await?;
            last = tx.query_one(&*insert, &[&account, &1i64]).await?.get(0);
        }
        Ok::<i64, tokio_postgres::Error>(last)
    };
    let mut tx = client.transaction().await?;
    match added {
        Added::Nothing => drop(work(&tx).await?),
        Added::Row => {
            let payment = work(&tx).await?;
            tx.execute(&*note, &[&account, &body(payment).as_bytes()]).await?;
        }
        Added::Once => {
            let (intent, asked) = asked(name)?;
            once_tx(&mut tx, &intent, asked, work).await?;
        }
        Added::Append => {
            let payment = work(&tx).await?;
            append_tx(&mut tx, &event(account, payment)?).await?;
        }
    }
    tx.commit().await?;
    Ok(())
}
