//! Flags of the commands that run until they are stopped.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use tokio::net::TcpListener;

use crate::admin::{bind, require_loopback};
use crate::duration::parse_ms;
use crate::failure::Failed;
use crate::log::parse_level;

/// The admin listener of a command that has one only on request. Each command defines itself what differs: the names of
/// its environment variables, and what "ready" means.
#[derive(Args)]
pub(crate) struct AdminFlags {
    /// Serve /healthz, /readyz and /metrics on this address; not served unless given
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// Allow an admin address that other machines can reach; it asks for no password
    #[arg(long, env = "SEMEL_ADMIN_INSECURE", hide_env = true, num_args = 0..=1, default_missing_value = "true",
          value_name = "BOOL")]
    admin_insecure: Option<bool>,
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_ms)]
    ready_within: u64,
}

impl AdminFlags {
    /// Checked before anything is opened.
    pub(crate) fn check(&self) -> Result<(), Failed> {
        self.admin.map_or(Ok(()), |address| require_loopback(address, self.admin_insecure.unwrap_or(false)))
    }

    pub(crate) async fn listener(&self) -> Result<Option<TcpListener>, Failed> {
        match self.admin {
            Some(address) => bind("admin", address).await.map(Some),
            None => Ok(None),
        }
    }

    /// How long failures may last while the command still counts as ready.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(self.ready_within)
    }
}

/// The log level, and what stops the command beside signals.
#[derive(Args)]
pub(crate) struct RunFlags {
    /// The log level: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = parse_level, env = "SEMEL_LOG",
          hide_env = true)]
    pub(crate) log: tracing::Level,
    /// Stop when stdin ends, which means that the parent process is gone
    #[arg(long, hide = true)]
    pub(crate) until_stdin_ends: bool,
}
