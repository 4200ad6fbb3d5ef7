//! Builds without the feature `postgres-tls`: plain connections.

use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, NoTls};

use super::connect::Duplex;
use super::error::{PostgresError, refused};
use super::options::{PostgresOptions, Tls};

pub(super) struct Connector;

impl Connector {
    pub(super) fn new(options: &PostgresOptions) -> Result<Self, PostgresError> {
        match options.tls {
            Tls::Disable | Tls::Prefer => Ok(Self),
            Tls::Require | Tls::VerifyFull => {
                Err(refused("this build has no TLS for PostgreSQL; build with the feature `postgres-tls`"))
            }
        }
    }

    pub(super) fn can_secure(&self) -> bool {
        false
    }

    pub(super) async fn secure(&self, _: &str, _: TcpStream) -> Result<Box<dyn Duplex>, String> {
        Err("this build has no TLS for PostgreSQL".to_owned())
    }

    pub(super) async fn connect(
        &self,
        config: &Config,
    ) -> Result<(Client, JoinHandle<()>), tokio_postgres::Error> {
        let (client, connection) = config.connect(NoTls).await?;
        let task = tokio::spawn(async move {
            // The next statement on it notices when the connection has ended.
            let _ = connection.await;
        });
        Ok((client, task))
    }
}
