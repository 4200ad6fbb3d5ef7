//! What appending costs in MySQL, where a counter per part gives events their numbers in the order of commits, and is held
//! until the commit: a business transaction of two rows with and without it, by turns.

use std::time::Instant;

use semel::outbox::{self, Event, append_tx};
use semel::tx::driver::Dialect;
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};
use testkit::services::{Service, find};

use crate::Failed;
use crate::table::Table;

const DATABASE: &str = "semel_bench_counter";
const TABLES: &str = "
    CREATE TABLE account (id bigint PRIMARY KEY, cents bigint NOT NULL);
    CREATE TABLE payment (id bigint AUTO_INCREMENT PRIMARY KEY, account bigint NOT NULL, cents bigint NOT NULL);
    CREATE TABLE note (id bigint AUTO_INCREMENT PRIMARY KEY, account bigint NOT NULL, body blob NOT NULL);
    INSERT INTO account VALUES (0,0),(1,0),(2,0),(3,0),(4,0),(5,0),(6,0),(7,0),(8,0),(9,0),(10,0),(11,0),(12,0),(13,0),
        (14,0),(15,0);
";
const ROUNDS: usize = 4;

/// What is added to a transaction.
#[derive(Clone, Copy)]
enum Added {
    Nothing,
    /// One more row of the service's own.
    Row,
    /// An event, of the account's key: they share 16 counters.
    Append,
    /// An event, always of the same key: they share one counter.
    OneKey,
}

const TURNS: [(Added, &str); 4] = [
    (Added::Nothing, "2 rows, one commit"),
    (Added::Row, "the same with a third row"),
    (Added::Append, "the same with append_tx"),
    (Added::OneKey, "the same with append_tx, one key for all"),
];

pub(super) async fn measure(size: usize, table: &mut Table) -> Result<(), Failed> {
    let Some(server) = find(Service::Mariadb) else {
        eprintln!("left out: MariaDB is not running (cargo xtask services up --only mariadb)");
        return Ok(());
    };
    let mut root = MySqlConnection::connect(&server).await?;
    let drop_it = format!("DROP DATABASE IF EXISTS {DATABASE}");
    root.execute(AssertSqlSafe(format!("{drop_it}; CREATE DATABASE {DATABASE}"))).await?;
    let url = format!("{}/{DATABASE}", server.rsplit_once('/').map_or("", |(host, _)| host));
    let mut own = MySqlConnection::connect(&url).await?;
    own.execute(TABLES).await?;
    own.execute(outbox::schema(Dialect::Mysql)).await?;
    for tasks in [1, 16] {
        let connections = u32::try_from(tasks)?;
        let options = MySqlPoolOptions::new().min_connections(connections).max_connections(connections);
        let pool = options.connect(&url).await?;
        tell(tasks, rates(&pool, tasks, 60 * size).await?, table);
        pool.close().await;
    }
    root.execute(AssertSqlSafe(drop_it)).await?;
    Ok(())
}

fn tell(tasks: usize, rates: [f64; TURNS.len()], table: &mut Table) {
    for ((_, what), rate) in TURNS.iter().zip(rates) {
        let note = match what {
            first if *first == TURNS[0].1 => "the floor".to_owned(),
            _ => format!("{:+.1} % time", (rates[0] / rate - 1.0) * 100.0),
        };
        table.row(&format!("MariaDB: {tasks} task(s), {what}"), rate, "/s", note);
    }
}

/// Transactions per second of each kind, by turns; the best round of each counts, and the first one does not.
async fn rates(pool: &MySqlPool, tasks: usize, each: usize) -> Result<[f64; TURNS.len()], Failed> {
    let mut best = [0.0_f64; TURNS.len()];
    for round in 0..=ROUNDS {
        for ((added, _), best) in TURNS.into_iter().zip(&mut best) {
            let begin = Instant::now();
            let running: Vec<_> = (0..tasks)
                .map(|task| {
                    let pool = pool.clone();
                    tokio::spawn(async move {
                        for _ in 0..each {
                            pay(&pool, i64::try_from(task)?, added).await?;
                        }
                        Ok::<_, Failed>(())
                    })
                })
                .collect();
            for task in running {
                task.await??;
            }
            if round > 0 {
                *best = best.max((tasks * each) as f64 / begin.elapsed().as_secs_f64());
            }
        }
    }
    Ok(best)
}

async fn pay(pool: &MySqlPool, account: i64, added: Added) -> Result<(), Failed> {
    let mut tx = pool.begin().await?;
    sqlx::query("UPDATE account SET cents = cents + 1 WHERE id = ?").bind(account).execute(&mut *tx).await?;
    let insert = sqlx::query("INSERT INTO payment (account, cents) VALUES (?, 1)").bind(account);
    let payment = insert.execute(&mut *tx).await?.last_insert_id();
    let body = format!("{{\"payment\":{payment},\"note\":\"{:x<220}\"}}", "");
    let key = match added {
        Added::Nothing => None,
        Added::Row => {
            let note = sqlx::query("INSERT INTO note (account, body) VALUES (?, ?)");
            note.bind(account).bind(body.as_bytes()).execute(&mut *tx).await?;
            None
        }
        Added::Append => Some(format!("account-{account}")),
        Added::OneKey => Some("account".to_owned()),
    };
    if let Some(key) = key {
        append_tx(&mut tx, &Event::new("payments", "payment.completed", body)?.key(&key)?).await?;
    }
    tx.commit().await?;
    Ok(())
}
