//! Old statements on new tables: what processes of 0.1.0 send, as it was written down, on the tables of that release, of
//! this build and of the next version. The code's own statements may change; these do not.

use rusqlite::Connection as Sqlite;
use semel::{inbox, outbox, store};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, Row, SqlSafeStr};
use testkit::services::Service;

use super::world::{BEFORE, World};

const POSTGRES: &str = include_str!("../../../fixtures/v0.1.0/statements.postgres.sql");
const MYSQL: &str = include_str!("../../../fixtures/v0.1.0/statements.mysql.sql");
const SQLITE: &str = include_str!("../../../fixtures/v0.1.0/statements.sqlite.sql");
/// The tables for intents in the application's own file.
const IN_APP: &str = include_str!("../../../fixtures/v0.1.0/tx.sqlite.sql");

/// Fewer would mean that a fixture was cut.
const STATEMENTS_MIN: usize = 90;

#[derive(Debug)]
enum Step<'a> {
    /// Which of SQLite's two files.
    In(&'a str),
    Prepare(String),
    Run(String),
    Gives(i64, &'a str),
}

/// The steps of a fixture, in their order.
fn steps(text: &str) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    for part in
        text.split("\n-- ").skip_while(|part| !part.starts_with("prepare") && !part.starts_with("in "))
    {
        let (head, sql) = part.split_once('\n').unwrap_or((part, ""));
        let sql = sql.trim();
        if let Some(file) = head.strip_prefix("in ") {
            steps.push(Step::In(file));
        } else if let Some(gives) = head.strip_prefix("gives ") {
            let (number, query) = gives.split_once(": ").unwrap();
            steps.push(Step::Gives(number.parse().unwrap(), query));
        } else if let Some(values) = head.strip_prefix("run:") {
            steps.push(Step::Run(with_values(sql, values.trim())));
        } else {
            assert_eq!(head, "prepare", "{part}");
            steps.push(Step::Prepare(sql.to_owned()));
        }
    }
    let prepared = steps.iter().filter(|step| matches!(step, Step::Prepare(_))).count();
    assert!(prepared >= STATEMENTS_MIN, "{prepared} statements");
    steps
}

/// The statement with its parameters (`$1`, `?1`, or `?` by turns) replaced.
fn with_values(sql: &str, values: &str) -> String {
    let values: Vec<&str> = values.split(" | ").collect();
    let (mut text, mut rest, mut next) = (String::new(), sql, 0);
    while let Some(at) = rest.find(['$', '?']) {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let index = rest[..digits].parse::<usize>().map_or(next, |number| number - 1);
        next += 1;
        text.push_str(values.get(index).unwrap_or_else(|| panic!("no value {index} for {sql}")));
        rest = &rest[digits..];
    }
    text + rest
}

/// On which tables.
#[derive(Clone, Copy, Debug)]
enum On {
    Before,
    Ours,
    After,
}

const ALL: [On; 3] = [On::Before, On::Ours, On::After];

async fn prepare(world: &World, on: On) {
    world.create(&BEFORE).await;
    if matches!(world, World::Sqlite(_)) {
        world.run(IN_APP).await;
    }
    if matches!(on, On::Ours | On::After) {
        store::migrate(&world.store_url()).await.unwrap();
        outbox::migrate(&world.url()).await.unwrap();
        inbox::migrate(&world.url()).await.unwrap();
    }
    if matches!(on, On::After) {
        world.expand().await;
    }
}

#[tokio::test]
async fn statements_of_0_1_0_run_on_newer_tables_in_postgres() {
    for on in ALL {
        let Some(world) = World::postgres().await else { return };
        prepare(&world, on).await;
        let World::Postgres(place) = &world else { unreachable!() };
        let client = place.client().await;
        for step in steps(POSTGRES) {
            let done = match &step {
                Step::Prepare(sql) => client.prepare(sql).await.map(drop),
                Step::Run(sql) => client.batch_execute(sql).await,
                Step::Gives(number, query) => {
                    let found = client.query_one(*query, &[]).await.map(|row| row.get::<_, i64>(0));
                    found.map(|found| assert_eq!(found, *number, "{on:?}: {query}"))
                }
                Step::In(_) => Ok(()),
            };
            done.unwrap_or_else(|error| panic!("{on:?}: {step:?}: {error:?}"));
        }
    }
}

#[tokio::test]
async fn statements_of_0_1_0_run_on_newer_tables_in_mysql() {
    in_mysql(Service::Mysql).await;
}

#[tokio::test]
async fn statements_of_0_1_0_run_on_newer_tables_in_mariadb() {
    in_mysql(Service::Mariadb).await;
}

async fn in_mysql(service: Service) {
    for on in ALL {
        let Some(world) = World::mysql(service).await else { return };
        prepare(&world, on).await;
        let World::Mysql { url, .. } = &world else { unreachable!() };
        // One session: its variables carry from one statement to the next.
        let mut connection = MySqlConnection::connect(url).await.unwrap();
        for step in steps(MYSQL) {
            let done = match &step {
                Step::Prepare(sql) => {
                    let sql = AssertSqlSafe(sql.clone()).into_sql_str();
                    (&mut connection).prepare(sql).await.map(drop)
                }
                Step::Run(sql) => connection.execute(AssertSqlSafe(sql.clone())).await.map(drop),
                Step::Gives(number, query) => {
                    let row = connection.fetch_one(AssertSqlSafe((*query).to_owned())).await;
                    row.map(|row| assert_eq!(row.get::<i64, _>(0), *number, "{on:?}: {query}"))
                }
                Step::In(_) => Ok(()),
            };
            done.unwrap_or_else(|error| panic!("{on:?}: {step:?}: {error}"));
        }
    }
}

#[tokio::test]
async fn statements_of_0_1_0_run_on_newer_tables_in_sqlite() {
    for on in ALL {
        let world = World::sqlite();
        prepare(&world, on).await;
        let open = |url: String| Sqlite::open(url.strip_prefix("sqlite:").unwrap()).unwrap();
        let mut file = open(world.store_url());
        for step in steps(SQLITE) {
            let done = match &step {
                Step::In("store") => Ok(()),
                Step::In(_) => {
                    file = open(world.url());
                    Ok(())
                }
                Step::Prepare(sql) => file.prepare(sql).map(drop),
                Step::Run(sql) => file.execute_batch(sql),
                Step::Gives(number, query) => {
                    let found = file.query_row(query, [], |row| row.get::<_, i64>(0));
                    found.map(|found| assert_eq!(found, *number, "{on:?}: {query}"))
                }
            };
            done.unwrap_or_else(|error| panic!("{on:?}: {step:?}: {error}"));
        }
    }
}

/// A next version that renames a column, or adds one that has to be given, is caught.
#[tokio::test]
async fn a_change_that_is_no_expand_is_caught() {
    for (change, caught) in [
        ("ALTER TABLE semel_outbox RENAME COLUMN headers TO meta", "headers"),
        ("DROP TABLE semel_inbox_result", "semel_inbox_result"),
    ] {
        let world = World::sqlite();
        prepare(&world, On::Ours).await;
        world.run(change).await;
        let file = Sqlite::open(world.url().strip_prefix("sqlite:").unwrap()).unwrap();
        let mut in_app = false;
        let mut failed = Vec::new();
        for step in steps(SQLITE) {
            match step {
                Step::In(which) => in_app = which == "app",
                Step::Prepare(sql) if in_app => {
                    failed.extend(file.prepare(&sql).err().map(|error| error.to_string()));
                }
                _ => {}
            }
        }
        assert!(failed.iter().any(|error| error.contains(caught)), "{change}: {failed:?}");
    }
}
