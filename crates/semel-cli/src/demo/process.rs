//! The gateway as a process of its own: this binary again, with a file that says what it guards.

use std::fs::{self, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::directory;
use crate::args::Bug;
use crate::failure::Failed;

/// How long a gateway may take until it listens.
const START_MAX: Duration = Duration::from_secs(20);
/// A client may hold the port for a moment after its owner died.
const STARTS_MAX: u32 = 20;
const STARTS_PAUSE: Duration = Duration::from_millis(100);

/// A gateway, running. Killed when dropped.
pub(super) struct Gateway {
    child: Child,
    directory: PathBuf,
    pub(super) address: SocketAddr,
    pub(super) admin: SocketAddr,
}

impl Gateway {
    /// Starts one on free ports, in front of `upstream`.
    pub(super) async fn start(
        directory: &Path,
        upstream: SocketAddr,
        bug: Option<Bug>,
    ) -> Result<Self, Failed> {
        fs::write(directory::config(directory), config(directory, upstream, bug)?)?;
        Self::spawn(directory, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// SIGKILL, to this child only: no handler, no drain, no goodbye. Then another one on the same store and port.
    pub(super) async fn kill_and_restart(&mut self) -> Result<(), Failed> {
        self.child.kill().await?;
        let mut failed = Failed::not_done("the gateway was not started again");
        for _ in 0..STARTS_MAX {
            match Self::spawn(&self.directory, self.address).await {
                Ok(started) => {
                    *self = started;
                    return Ok(());
                }
                Err(error) => failed = error,
            }
            tokio::time::sleep(STARTS_PAUSE).await;
        }
        Err(failed)
    }

    /// Ends it; there is nothing left for it to do.
    pub(super) async fn stop(mut self) {
        let _ = self.child.kill().await;
    }

    async fn spawn(directory: &Path, listen: SocketAddr) -> Result<Self, Failed> {
        let log = OpenOptions::new().create(true).append(true).open(directory::log(directory))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("gateway").arg("--config").arg(directory::config(directory));
        command.arg("--listen").arg(listen.to_string());
        // If the demo itself is killed, nobody is left to end it: then this pipe does.
        command.arg("--until-stdin-ends");
        // Settings of another gateway are none of this one's business.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SEMEL_") {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        let mut child = command.spawn()?;
        let Some(stdout) = child.stdout.take() else {
            return Err(Failed::not_done("the gateway has no stdout"));
        };
        let mut lines = BufReader::new(stdout).lines();
        let mut said = Vec::new();
        let two = async {
            while said.len() < 2 {
                match lines.next_line().await {
                    Ok(Some(line)) => said.push(line),
                    Ok(None) | Err(_) => return,
                }
            }
        };
        let in_time = timeout(START_MAX, two).await.is_ok();
        let address = |n: usize, begin: &str| {
            said.get(n).and_then(|line: &String| line.strip_prefix(begin)?.parse::<SocketAddr>().ok())
        };
        match (in_time, address(0, "listening on "), address(1, "admin on ")) {
            (true, Some(address), Some(admin)) => {
                Ok(Self { child, directory: directory.to_owned(), address, admin })
            }
            _ => {
                let _ = child.kill().await;
                let log = fs::read_to_string(directory::log(directory)).unwrap_or_default();
                let last = log.lines().last().unwrap_or("nothing").to_owned();
                Err(Failed::not_done(format!("the gateway did not start; it said: {last}")))
            }
        }
    }
}

/// Times are short because the demo is: the service takes half a second at worst, so "not found" may be believed
/// after more than that.
fn config(directory: &Path, upstream: SocketAddr, bug: Option<Bug>) -> Result<String, Failed> {
    let store = format!("sqlite:{}", directory::store(directory).display());
    // A JSON text is a TOML text.
    let store = serde_json::to_string(&store).map_err(|error| Failed::not_done(error.to_string()))?;
    let lookup = if bug == Some(Bug::Blind) { "/payments/{key}" } else { "/payments/by-key/{key}" };
    Ok(format!(
        r#"admin = "127.0.0.1:0"
upstream = "http://{upstream}"
store = {store}
log = "warn"

[scope]
single_tenant = true

[timeouts]
response = "250ms"

[[operation]]
match = "POST /payments"
name = "payment.create"
preset = "payment"
lease = "1s"
effect = "opaque"
lookup = "GET {lookup}"
lookup_settle = "1s"
lookup_status = 201
"#
    ))
}
