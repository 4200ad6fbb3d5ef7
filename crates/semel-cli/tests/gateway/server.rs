//! A schema of the test's own on PostgreSQL, behind a proxy that can inject network faults.

use testkit::proxy::{Fault, Proxy};
use testkit::services::{Lease, Service, require};

use crate::client::SOON;

pub(crate) struct Server {
    lease: Lease,
    schema: String,
    proxy: Proxy,
}

impl Server {
    /// `None` if the run has no PostgreSQL.
    pub(crate) fn new() -> Option<Self> {
        let lease = require(Service::Postgres)?;
        let schema = format!("gateway_{}_{:016x}", std::process::id(), fastrand::u64(..));
        run(lease.url(), &format!("CREATE SCHEMA {schema}"));
        let proxy = Proxy::start(host(lease.url())).unwrap();
        Some(Self { lease, schema, proxy })
    }

    /// The store's URL, through the proxy.
    pub(crate) fn url(&self) -> String {
        let url = self.lease.url();
        let url = url.replace(host(url), &self.proxy.addr().to_string());
        format!("{url}?schema={}", self.schema)
    }

    /// Makes it unreachable from now on.
    pub(crate) fn leave(&self) {
        self.proxy.set(Fault::Refuse);
        self.proxy.cut();
    }

    /// From now on requests are executed, but their answers are lost.
    pub(crate) fn lose_answers(&self) {
        self.proxy.set(Fault::DropResponse);
    }

    pub(crate) fn wait_for_a_lost_answer(&self) {
        let until = std::time::Instant::now() + SOON;
        while self.proxy.dropped() == 0 {
            assert!(std::time::Instant::now() < until, "nothing was asked");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }

    pub(crate) fn come_back(&self) {
        self.proxy.set(Fault::Pass);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        run(self.lease.url(), &format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema));
    }
}

/// `127.0.0.1:5432` of `postgres://postgres@127.0.0.1:5432/postgres`.
fn host(url: &str) -> &str {
    let (_, rest) = url.split_once("://").unwrap();
    let host = rest.split('/').next().unwrap();
    host.rsplit_once('@').map_or(host, |(_, host)| host)
}

fn run(url: &str, statement: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        client.batch_execute(statement).await.unwrap();
        drop(client);
        connection.await.unwrap().unwrap();
    });
}
