//! Child processes of the demo: this binary again, as the gateway, as the reference service, or as a part of the demo of
//! sagas.

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

/// How long a process may take until it listens.
const START_MAX: Duration = Duration::from_secs(20);
/// Attempts to restart: a client may occupy the port for a moment after its owner died.
const STARTS_MAX: u32 = 20;
const STARTS_PAUSE: Duration = Duration::from_millis(100);

/// The user's servers: the store, and a cache in front of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Servers {
    pub(super) store: Option<String>,
    pub(super) cache: Option<String>,
}

/// A listening process. Killed when dropped.
pub(super) struct Process {
    child: Child,
    recipe: Recipe,
    pub(super) address: SocketAddr,
    pub(super) admin: Option<SocketAddr>,
}

/// How a process is started, and restarted.
#[derive(Clone)]
struct Recipe {
    /// Where its stderr goes.
    log: PathBuf,
    words: Vec<String>,
    servers: Servers,
    has_admin: bool,
}

impl Process {
    /// Starts a gateway on free ports, in front of `upstream`.
    pub(super) async fn gateway(
        directory: &Path,
        upstream: SocketAddr,
        bug: Option<Bug>,
        servers: Servers,
    ) -> Result<Self, Failed> {
        fs::write(directory::config(directory), config(directory, upstream, bug)?)?;
        let config = directory::config(directory).display().to_string();
        let words = vec!["gateway".to_owned(), "--config".to_owned(), config];
        Self::start(Recipe { log: directory::log(directory), words, servers, has_admin: true }).await
    }

    /// Starts the reference service on a free port.
    pub(super) async fn service(directory: &Path, seed: u64, servers: Servers) -> Result<Self, Failed> {
        let words = vec!["demo-service".to_owned(), "--seed".to_owned(), seed.to_string()];
        Self::start(Recipe { log: directory::log(directory), words, servers, has_admin: false }).await
    }

    /// Starts this binary with these words on a free port; its log is appended to that file.
    pub(super) async fn part(log: &Path, words: Vec<String>) -> Result<Self, Failed> {
        let servers = Servers::default();
        Self::start(Recipe { log: log.to_owned(), words, servers, has_admin: false }).await
    }

    async fn start(recipe: Recipe) -> Result<Self, Failed> {
        Self::spawn(recipe, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// SIGKILL, to this child only: no handler, no drain. Then another one on the same store and port.
    pub(super) async fn kill_and_restart(&mut self) -> Result<(), Failed> {
        self.child.kill().await?;
        let mut failed = Failed::not_done("it could not be restarted");
        for _ in 0..STARTS_MAX {
            match Self::spawn(self.recipe.clone(), self.address).await {
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

    /// Kills it; it has nothing left to do.
    pub(super) async fn stop(mut self) {
        let _ = self.child.kill().await;
    }

    async fn spawn(recipe: Recipe, listen: SocketAddr) -> Result<Self, Failed> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&recipe.words).arg("--listen").arg(listen.to_string());
        // If the demo itself is killed, the closed pipe ends the child.
        command.arg("--until-stdin-ends");
        // The user's settings for another gateway must not apply to this one.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SEMEL_") {
                command.env_remove(name);
            }
        }
        // Not as flags: they may contain passwords, and every user can list processes.
        let Servers { store, cache } = &recipe.servers;
        for (name, url) in [("SEMEL_STORE", store), ("SEMEL_CACHE", cache)] {
            if let Some(url) = url {
                command.env(name, url);
            }
        }
        let stderr = OpenOptions::new().create(true).append(true).open(&recipe.log)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr).kill_on_drop(true);
        let mut child = command.spawn()?;
        let Some(stdout) = child.stdout.take() else {
            return Err(Failed::not_done("a child process has no stdout"));
        };
        let mut lines = BufReader::new(stdout).lines();
        let mut printed = Vec::new();
        let all = async {
            while printed.len() < 1 + usize::from(recipe.has_admin) {
                match lines.next_line().await {
                    Ok(Some(line)) => printed.push(line),
                    Ok(None) | Err(_) => return,
                }
            }
        };
        let in_time = timeout(START_MAX, all).await.is_ok();
        let address = |n: usize, begin: &str| {
            printed.get(n).and_then(|line: &String| line.strip_prefix(begin)?.parse::<SocketAddr>().ok())
        };
        match (in_time, address(0, "listening on "), address(1, "admin on ")) {
            (true, Some(address), admin) if admin.is_some() == recipe.has_admin => {
                Ok(Self { child, recipe, address, admin })
            }
            _ => {
                let _ = child.kill().await;
                let log = fs::read_to_string(&recipe.log).unwrap_or_default();
                let last = log.lines().last().unwrap_or("nothing").to_owned();
                let what = recipe.words.first().map_or("", String::as_str);
                Err(Failed::not_done(format!(
                    "the {what} did not start; the last line of its log is: {last}"
                )))
            }
        }
    }
}

/// Times are short because the demo is: the service takes half a second at worst, so "not found" is final after more
/// than that.
fn config(directory: &Path, upstream: SocketAddr, bug: Option<Bug>) -> Result<String, Failed> {
    let store = directory::store_url(directory);
    // A JSON string is also a TOML string.
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
lookup_absent = 404
"#
    ))
}
