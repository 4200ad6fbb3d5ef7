//! Flags of everything that runs until it is stopped.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use tokio::net::TcpListener;

use crate::admin::{bind, keep_inside};
use crate::duration::parse_ms;
use crate::failure::Failed;
use crate::log::parse_level;

/// The admin listener of a command that has one only if it is asked for. What differs between commands, they say themselves:
/// the names in the environment, and what is ready.
#[derive(Args)]
pub(crate) struct AdminFlags {
    /// Where /healthz, /readyz and /metrics are; nowhere unless given
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// Yes, listen for admin requests beyond this machine, although nobody is asked for a password
    #[arg(long, env = "SEMEL_ADMIN_INSECURE", hide_env = true, num_args = 0..=1, default_missing_value = "true",
          value_name = "BOOL")]
    admin_insecure: Option<bool>,
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_ms)]
    ready_within: u64,
}

impl AdminFlags {
    /// Looked at before anything is opened.
    pub(crate) fn check(&self) -> Result<(), Failed> {
        self.admin.map_or(Ok(()), |address| keep_inside(address, self.admin_insecure.unwrap_or(false)))
    }

    pub(crate) async fn listener(&self) -> Result<Option<TcpListener>, Failed> {
        match self.admin {
            Some(address) => bind("admin", address).await.map(Some),
            None => Ok(None),
        }
    }

    /// How long something may have failed and count as ready all the same.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(self.ready_within)
    }
}

/// What is said meanwhile, and what ends it beside signals.
#[derive(Args)]
pub(crate) struct RunFlags {
    /// What is logged: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = parse_level, env = "SEMEL_LOG",
          hide_env = true)]
    pub(crate) log: tracing::Level,
    /// Stop when stdin ends: whoever started it is gone then, however that came about
    #[arg(long, hide = true)]
    pub(crate) until_stdin_ends: bool,
}
