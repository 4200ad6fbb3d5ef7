//! No connection is to be had: the server's are taken by others, or this process's own are all busy.

use std::time::{Duration, Instant};

use proof::load::Doubt;
use semel::store::mysql::MysqlStore;
use semel::store::postgres::PostgresStore;
use semel::store::{AnyStore, Store, StoreError};
use sqlx::{AssertSqlSafe, Connection, Executor};
use testkit::proxy::{Fault, Proxy};
use testkit::services::{Service, alone, require};
use tokio_postgres::NoTls;

use crate::faults::place::{Place, at_last, open_at_last, patient, try_patient};
use crate::faults::scene::{PATIENCE, Scene};

/// How long others have all connections.
const TAKEN: Duration = Duration::from_millis(1_200);
/// Each way of each statement, and for how long: callers wait a second for a place, three times.
const SLOW: Duration = Duration::from_millis(100);
const SLOW_FOR: Duration = Duration::from_secs(5);
/// Connections there are, where the test says how many.
const CONNECTIONS: usize = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_connections_of_postgres_are_taken() {
    let Some(server) = alone(Service::Postgres) else { return };
    let place = Place::on(Service::Postgres, server.url()).await;
    let (schema, role) = (place.name(), format!("{}_few", place.name()));
    // The same error as `max_connections`, for this role alone.
    place.say(format!("CREATE ROLE {role} LOGIN CONNECTION LIMIT {CONNECTIONS}")).await;
    place.say(format!("GRANT ALL ON SCHEMA {schema} TO {role}")).await;
    let as_role = |url: &str| url.replace("postgres://postgres@", &format!("postgres://{role}@"));
    let scene = Scene::new(open_at_last(&as_role(&place.url())).await);
    let taker = as_role(server.url());
    let terminate =
        format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'");
    let fault = async || {
        let mut taken = Vec::new();
        place.say(terminate.clone()).await;
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            match tokio_postgres::connect(&taker, NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    taken.push(client);
                }
                // The store may have been first with some of them: it loses them once more.
                Err(_) if taken.len() < CONNECTIONS => {
                    let ours = format!("{terminate} AND application_name = 'semel'");
                    place.say(ours).await;
                }
                Err(_) => break,
            }
        }
        assert_eq!(taken.len(), CONNECTIONS);
        tokio::time::sleep(TAKEN).await;
    };
    let judgement = scene.under("postgres crowded", Doubt::None, fault).await;
    assert!(judgement.expect_clean().unavailable > 0, "no caller noticed: {judgement}");
    // The store closes its connections some time after it is dropped.
    place.say(terminate).await;
    place.say(format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random traffic"]
async fn all_connections_of_mariadb_are_taken() {
    all_are_taken(Service::Mariadb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random traffic"]
async fn all_connections_of_mysql_are_taken() {
    all_are_taken(Service::Mysql).await;
}

async fn all_are_taken(service: Service) {
    let Some(server) = alone(service) else { return };
    let place = Place::on(service, server.url()).await;
    let scene = Scene::new(place.store().await);
    // One more than others get is for an administrator, and this test is one.
    let mut admin = sqlx::MySqlConnection::connect(server.url()).await.unwrap();
    let database = place.name().to_owned();
    let fault = async || {
        run(&mut admin, &format!("SET GLOBAL max_connections = {CONNECTIONS}")).await;
        let mut taken = Vec::new();
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            match sqlx::MySqlConnection::connect(server.url()).await {
                Ok(connection) => taken.push(connection),
                Err(_) if taken.len() < CONNECTIONS => {
                    let ours = format!(
                        "SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE db = '{database}'"
                    );
                    let ids: Vec<i64> =
                        sqlx::query_scalar(AssertSqlSafe(ours)).fetch_all(&mut admin).await.unwrap();
                    for id in ids {
                        // It may be gone already.
                        let _ = admin.execute(AssertSqlSafe(format!("KILL {id}"))).await;
                    }
                }
                Err(_) => break,
            }
        }
        let had = taken.len();
        tokio::time::sleep(TAKEN).await;
        run(&mut admin, "SET GLOBAL max_connections = DEFAULT").await;
        assert!(had >= CONNECTIONS, "{had} connections were taken");
    };
    let judgement = scene.under(&format!("{service} crowded"), Doubt::None, fault).await;
    assert!(judgement.expect_clean().unavailable > 0, "no caller noticed: {judgement}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_connections_of_redis_are_taken() {
    let Some(server) = alone(Service::Redis) else { return };
    let place = Place::on(Service::Redis, server.url()).await;
    let scene = Scene::new(place.store().await);
    let mut admin = patient(server.url()).await;
    let fault = async || {
        say::<()>(&mut admin, &format!("CONFIG SET maxclients {CONNECTIONS}")).await;
        say::<()>(&mut admin, "CLIENT SETNAME taker").await;
        let mut taken = Vec::new();
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let took = async {
                let mut connection = try_patient(server.url()).await?;
                ::redis::cmd("CLIENT").arg("SETNAME").arg("taker").exec_async(&mut connection).await?;
                Ok::<_, ::redis::RedisError>(connection)
            };
            match took.await {
                Ok(connection) => taken.push(connection),
                Err(_) if taken.len() < CONNECTIONS - 1 => {
                    let all: String = say(&mut admin, "CLIENT LIST").await;
                    for client in all.lines().filter(|line| !line.contains("name=taker")) {
                        let id = client.split([' ', '=']).nth(1).unwrap();
                        say::<i64>(&mut admin, &format!("CLIENT KILL ID {id}")).await;
                    }
                }
                Err(_) => break,
            }
        }
        let had = taken.len();
        tokio::time::sleep(TAKEN).await;
        say::<()>(&mut admin, "CONFIG SET maxclients 10000").await;
        assert_eq!(had, CONNECTIONS - 1, "not all connections were taken");
    };
    let judgement = scene.under("redis crowded", Doubt::None, fault).await;
    assert!(judgement.expect_clean().unavailable > 0, "no caller noticed: {judgement}");
}

async fn run(connection: &mut sqlx::MySqlConnection, sql: &str) {
    connection.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
}

async fn say<T: ::redis::FromRedisValue>(to: &mut ::redis::aio::MultiplexedConnection, words: &str) -> T {
    let mut command = ::redis::Cmd::new();
    words.split(' ').for_each(|word| {
        command.arg(word);
    });
    command.query_async(to).await.unwrap()
}

/// A store with one connection, one request at a time and one place to wait, on a slow way.
async fn our_own_are_busy<S: Store>(service: Service, open: impl AsyncFn(&str) -> Result<S, StoreError>) {
    let Some(server) = require(service) else { return };
    let place = Place::on(service, server.url()).await;
    let proxy = Proxy::start(place.address()).unwrap();
    // The tables are made with patience; what follows opens under short bounds.
    place.patient_store().await;
    let url = place.url_through(&proxy);
    let scene = Scene::new(AnyStore::new(at_last(async || open(&url).await).await));
    let fault = async || {
        proxy.set(Fault::Delay(SLOW));
        tokio::time::sleep(SLOW_FOR).await;
        proxy.set(Fault::Pass);
    };
    let judgement = scene.under(&format!("{service} queue full"), Doubt::None, fault).await;
    assert!(judgement.expect_clean().unavailable > 0, "no caller noticed: {judgement}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random traffic"]
async fn our_own_connections_to_postgres_are_busy() {
    our_own_are_busy(Service::Postgres, async |url| {
        PostgresStore::options(url)?.connections(1).batch_max(1).queue_max(1).open().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random traffic"]
async fn our_own_connections_to_mariadb_are_busy() {
    our_own_are_busy(Service::Mariadb, async |url| {
        let wait = Duration::from_millis(100);
        let options = MysqlStore::options().connections(1).batch_max(1).queue_max(1).queue_wait(wait);
        options.open(url).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random traffic"]
async fn our_own_connections_to_mysql_are_busy() {
    our_own_are_busy(Service::Mysql, async |url| {
        let wait = Duration::from_millis(100);
        let options = MysqlStore::options().connections(1).batch_max(1).queue_max(1).queue_wait(wait);
        options.open(url).await
    })
    .await;
}
