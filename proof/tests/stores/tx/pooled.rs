//! `once_tx` behind PgBouncer in transaction mode, where every transaction may have another session, with sqlx, which
//! prepares statements.

use std::error::Error;
use std::time::Duration;

use semel::tx::{Once, TxError, TxReply};
use sqlx::PgConnection;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use testkit::services::Pooler;

use crate::tx::world::{World, asked, intent};

const PATIENCE: Duration = Duration::from_secs(60);

struct Pooled {
    world: World,
    role: String,
    pooler: Pooler,
}

impl Pooled {
    async fn new() -> Option<Self> {
        let world = World::new().await?;
        let [url, schema] = world.place();
        let role = format!("{schema}_pooled");
        // Its tables are found without a setting of the session.
        let made =
            format!("CREATE ROLE {role} LOGIN SUPERUSER; ALTER ROLE {role} SET search_path = {schema}");
        world.connect().await.batch_execute(&made).await.unwrap();
        let server = url.rsplit_once('@').unwrap().1.split_once('/').unwrap().0;
        let started = (0..4).find_map(|_| Pooler::start(server, &role).ok());
        let pooler = started.unwrap_or_else(|| Pooler::start(server, &role).unwrap());
        Some(Self { world, role, pooler })
    }

    async fn pool(&self, connections: u32, statements: usize) -> PgPool {
        let options: PgConnectOptions = self.pooler.url().parse().unwrap();
        let options = options.extra_float_digits(None).statement_cache_capacity(statements);
        PgPoolOptions::new().max_connections(connections).connect_with(options).await.unwrap()
    }

    async fn end(self) {
        let Self { world, role, pooler } = self;
        drop(pooler);
        let client = world.connect().await;
        client.batch_execute(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).await.unwrap();
        world.end().await;
    }
}

/// The work, as an application writes it behind such a pooler.
async fn book(tx: &mut PgConnection, name: &str) -> Result<i64, sqlx::Error> {
    let update = "UPDATE account SET cents = cents + 5 WHERE id = 7";
    sqlx::query(update).persistent(false).execute(&mut *tx).await?;
    let insert = "INSERT INTO payment (name, cents) VALUES ($1, 5) RETURNING id";
    sqlx::query_scalar(insert).bind(name).persistent(false).fetch_one(tx).await
}

async fn pay(pool: &PgPool, key: &str) -> Result<TxReply<i64>, TxError<sqlx::Error>> {
    let mut tx = pool.begin().await.map_err(TxError::Work)?;
    let once = Once::new(&intent(key), asked(5)).wait(PATIENCE);
    let paid = once.run_tx(&mut tx, async |tx| book(tx, key).await).await?;
    tx.commit().await.map_err(TxError::Work)?;
    Ok(paid)
}

#[tokio::test]
async fn duplicates_make_one_row_each_without_a_cache_of_statements() {
    let Some(pooled) = Pooled::new().await else { return };
    // More connections than the pooler has sessions, so that they take turns.
    let pool = pooled.pool(12, 0).await;
    let tasks: Vec<_> = (0..24)
        .map(|task: usize| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let mut ran = 0;
                for round in 0..10usize {
                    // Four tasks at a time ask for the same.
                    let key = format!("k{}", task / 4 * 100 + round);
                    ran += usize::from(!pay(&pool, &key).await.unwrap().replayed);
                }
                ran
            })
        })
        .collect();
    let mut ran = 0;
    for task in tasks {
        ran += task.await.unwrap();
    }
    assert_eq!(ran, 60);
    // What is rolled back leaves no trace, also on a session that others go on with.
    let mut tx = pool.begin().await.unwrap();
    let once = Once::new(&intent("back"), asked(5)).wait(PATIENCE);
    once.run_tx(&mut tx, async |tx| book(tx, "back").await).await.unwrap();
    tx.rollback().await.unwrap();
    assert!(!pay(&pool, "back").await.unwrap().replayed);
    assert_eq!(pooled.world.count("SELECT count(*) FROM payment").await, 61);
    assert_eq!(pooled.world.count("SELECT count(DISTINCT name) FROM payment").await, 61);
    assert_eq!(pooled.world.count("SELECT cents FROM account").await, 305);
    pool.close().await;
    pooled.end().await;
}

#[tokio::test]
async fn a_cache_of_statements_is_named_as_what_is_wrong() {
    let Some(pooled) = Pooled::new().await else { return };
    let (one, other) = (pooled.pool(1, 100).await, pooled.pool(1, 100).await);
    // Each keeps a statement, on a session of its own.
    let (mut first, mut second) = (one.begin().await.unwrap(), other.begin().await.unwrap());
    for tx in [&mut first, &mut second] {
        sqlx::query("SELECT cents FROM account WHERE id = $1").bind(7_i64).execute(&mut **tx).await.unwrap();
    }
    first.commit().await.unwrap();
    second.commit().await.unwrap();
    // Others take three of the pooler's four sessions, so that one is all that is left to both.
    let busy = pooled.pool(3, 100).await;
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(busy.begin().await.unwrap());
    }
    pay(&one, "a").await.unwrap();
    // The same session, on which the first has prepared its statements under the names that this one wants.
    let error = pay(&other, "b").await.unwrap_err();
    let TxError::Database(error) = error else { panic!("not {error:?}") };
    assert!(error.to_string().contains("statement_cache_capacity(0)"), "{error}: {:?}", error.source());
    assert_eq!(pooled.world.count("SELECT count(*) FROM payment").await, 1);
    for other in others {
        other.rollback().await.unwrap();
    }
    for pool in [one, other, busy] {
        pool.close().await;
    }
    pooled.end().await;
}
