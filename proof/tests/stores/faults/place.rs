//! A schema, a database or a prefix of a test's own on one of the servers.

use std::time::Duration;

use semel::store::{AnyStore, StoreError};
use sqlx::{AssertSqlSafe, Connection, Executor};
use testkit::proxy::Proxy;
use testkit::services::Service;
use tokio_postgres::NoTls;

/// Where a test's store is. The tables go away with this.
pub(crate) struct Place {
    service: Service,
    server: String,
    name: String,
}

impl Place {
    pub(crate) async fn on(service: Service, server: &str) -> Self {
        let name = format!("faults_{}_{:x}", std::process::id(), fastrand::u32(..));
        let place = Self { service, server: server.to_owned(), name };
        match service {
            Service::Postgres => place.say(format!("CREATE SCHEMA {}", place.name)).await,
            Service::Mariadb | Service::Mysql => place.say(format!("CREATE DATABASE {}", place.name)).await,
            _ => {}
        }
        place
    }

    /// The store's URL. Its own time-outs are short, so that a test sees them run out.
    pub(crate) fn url(&self) -> String {
        let Self { service, server, name } = self;
        match service {
            Service::Postgres => {
                format!("{server}?schema={name}&statement_timeout=1s&connect_timeout=1s")
            }
            Service::Mariadb | Service::Mysql => {
                let server = server.rsplit_once('/').map_or(server.as_str(), |(server, _)| server);
                format!("{server}/{name}?statement-timeout-ms=1000&connect-timeout-ms=1000")
            }
            Service::RedisCluster => {
                let nodes = server.replace("redis://", "");
                format!("redis+cluster://{nodes}?prefix={name}&timeout=1000&create=yes")
            }
            _ => format!("{server}?prefix={name}&timeout=1000&create=yes"),
        }
    }

    /// The same, through a proxy.
    pub(crate) fn url_through(&self, proxy: &Proxy) -> String {
        self.url().replace(&self.address(), &proxy.addr().to_string())
    }

    /// Host and port of the server.
    pub(crate) fn address(&self) -> String {
        let rest = self.server.split_once("://").map_or("", |(_, rest)| rest);
        let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
        rest.split('/').next().unwrap_or("").to_owned()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) async fn store(&self) -> AnyStore {
        open_at_last(&self.url()).await
    }

    /// The store's URL with time-outs that a busy machine keeps, for who is not to see them run out.
    pub(crate) fn patient_url(&self) -> String {
        let url = self.url().replace("timeout=1s", "timeout=30s");
        url.replace("timeout-ms=1000", "timeout-ms=30000").replace("timeout=1000", "timeout=30000")
    }

    /// The store with those.
    pub(crate) async fn patient_store(&self) -> AnyStore {
        open(&self.patient_url()).await.expect("the store opens")
    }

    /// A statement beside the store.
    pub(crate) async fn say(&self, sql: String) {
        match self.service {
            Service::Postgres => {
                let (client, connection) =
                    tokio_postgres::connect(&self.server, NoTls).await.expect("connects");
                tokio::spawn(connection);
                client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            }
            Service::Mariadb | Service::Mysql => {
                let mut connection = sqlx::MySqlConnection::connect(&self.server).await.expect("connects");
                connection.execute(AssertSqlSafe(sql)).await.expect("the statement is fine");
                let _ = connection.close().await;
            }
            _ => panic!("{} speaks no SQL", self.service),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let sql = match self.service {
            Service::Postgres => format!("DROP SCHEMA {} CASCADE", self.name),
            Service::Mariadb | Service::Mysql => format!("DROP DATABASE {}", self.name),
            _ => return,
        };
        let place = Self { service: self.service, server: self.server.clone(), name: self.name.clone() };
        // A thread and a runtime of its own: this may be inside one, which cannot be blocked on. What a failed
        // test leaves behind is not worth a second failure.
        let dropping = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let limit = Duration::from_secs(10);
            let _ = runtime.block_on(async { tokio::time::timeout(limit, place.say(sql)).await });
            std::mem::forget(place);
        });
        let _ = dropping.join();
    }
}

/// A line to Redis beside the store. Asked for nothing else, a client gives up after half a second.
pub(crate) async fn patient(url: &str) -> ::redis::aio::MultiplexedConnection {
    try_patient(url).await.unwrap()
}

/// The same where it may be refused.
pub(crate) async fn try_patient(url: &str) -> ::redis::RedisResult<::redis::aio::MultiplexedConnection> {
    let limit = Some(Duration::from_secs(30));
    let config =
        ::redis::AsyncConnectionConfig::new().set_connection_timeout(limit).set_response_timeout(limit);
    ::redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
}

/// Opens, also where a busy machine is too slow for the short time-outs at first.
pub(crate) async fn open_at_last(url: &str) -> AnyStore {
    at_last(async || open(url).await).await
}

/// The same for a store that is opened in another way.
pub(crate) async fn at_last<S>(open: impl AsyncFn() -> Result<S, StoreError>) -> S {
    let opening = async {
        loop {
            match open().await {
                Ok(store) => return store,
                Err(error) => println!("not open yet: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), opening).await.expect("the store opens")
}

pub(crate) async fn open(url: &str) -> Result<AnyStore, StoreError> {
    semel::store::open(url).await
}
