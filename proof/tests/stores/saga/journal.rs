//! The laws of journals on each database. SQLite is in the library's own tests.

use std::sync::Arc;

use semel::conformance::journal::LAWS;
use semel::saga::Journal;
use semel::saga::sql::{SqlJournal, schema};
use semel::tx::driver::Dialect;
use testkit::services::Service;

use crate::outbox::world::{Mysql, Postgres};

async fn every_law_holds(url: &str) {
    let journal: Arc<dyn Journal> = Arc::new(SqlJournal::open(url).await.unwrap());
    for (name, law) in LAWS {
        println!("{name}");
        law(&journal).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_every_law_holds() {
    let Some(world) = Postgres::with(schema(Dialect::Postgres)).await else { return };
    every_law_holds(&world.url()).await;
    world.end().await;
}

async fn on(server: Service) {
    let Some(world) = Mysql::with(server, schema(Dialect::Mysql)).await else { return };
    every_law_holds(&world.url()).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb_every_law_holds() {
    on(Service::Mariadb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql_every_law_holds() {
    on(Service::Mysql).await;
}
