//! A schema of a test's own on the server all tests share.

use std::sync::atomic::{AtomicU32, Ordering};

use semel::store::postgres::{PostgresOptions, PostgresStore};
use testkit::services::{Lease, Service, require};
use tokio_postgres::{Client, NoTls};

/// What a store's URL says for tests that must not see its bounds run out: a busy machine keeps these.
pub(crate) const PATIENT: &str = "connect_timeout=60s&statement_timeout=60s";

/// A schema that goes away with this.
pub(crate) struct Place {
    pub(crate) schema: String,
    pub(crate) server: String,
    _lease: Lease,
}

impl Place {
    /// `None` when this run goes without PostgreSQL.
    pub(crate) fn take() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let lease = require(Service::Postgres)?;
        let server = lease.url().to_owned();
        let schema = format!(
            "t{}_{}_{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed),
            fastrand::u32(..)
        );
        apart(&server, format!("CREATE SCHEMA {schema}"));
        Some(Self { schema, server, _lease: lease })
    }

    /// The store's URL, through the server's own door.
    pub(crate) fn url(&self) -> String {
        self.url_with(&format!("&{PATIENT}"))
    }

    /// The same, with other options.
    pub(crate) fn url_with(&self, more: &str) -> String {
        format!("{}?schema={}{more}", self.server, self.schema)
    }

    pub(crate) fn options(&self) -> PostgresOptions {
        PostgresStore::options(&self.url()).expect("the URL is one")
    }

    pub(crate) async fn store(&self) -> PostgresStore {
        self.options().open().await.expect("the store opens")
    }

    /// A connection of a person's, with the tables in sight.
    pub(crate) async fn client(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.server, NoTls).await.expect("connects");
        tokio::spawn(connection);
        client
            .batch_execute(&format!("SET search_path = {}", self.schema))
            .await
            .expect("the schema is there");
        client
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        clear_away(&self.server, format!("DROP SCHEMA {} CASCADE", self.schema));
    }
}

/// Runs a statement on a thread and a runtime of its own, so that it works in any test.
pub(crate) fn apart(server: &str, sql: String) {
    beside(server, sql).expect("a statement beside the test");
}

/// The same in `drop`: what a test leaves behind is not worth a second failure.
pub(crate) fn clear_away(server: &str, sql: String) {
    if let Err(error) = beside(server, sql) {
        eprintln!("{error}");
    }
}

fn beside(server: &str, sql: String) -> Result<(), String> {
    let (server, said) = (server.to_owned(), sql.clone());
    let done = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&server, NoTls).await?;
            let task = tokio::spawn(connection);
            client.batch_execute(&sql).await?;
            drop(client);
            let _ = task.await;
            Ok::<(), tokio_postgres::Error>(())
        })
    });
    match done.join() {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("{said}: {error:?}")),
        Err(_) => Err(format!("{said}: panicked")),
    }
}
