//! The binary, started and stopped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use testkit::child::{Child, Finished};

use crate::client::{Answer, SOON, send};
use crate::upstream::Upstream;

pub(crate) struct Gateway {
    pub(crate) addr: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) child: Child,
}

/// A directory with a store and a configuration, used by several gateways in turn.
pub(crate) struct Place {
    directory: TempDir,
    /// The store's URL, unless it is a file in the directory.
    store: Option<String>,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { directory: testkit::scratch::directory(), store: None }
    }

    /// With a store elsewhere.
    #[cfg(feature = "postgres")]
    pub(crate) fn with_store(url: String) -> Self {
        Self { store: Some(url), ..Self::new() }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn store(&self) -> String {
        self.store.clone().unwrap_or_else(|| format!("sqlite:{}", self.file("semel.db").display()))
    }

    /// The command with this store and, if there is one, this configuration.
    pub(crate) fn command(&self, args: &[&str], config: &str) -> Command {
        let mut command = semel(args);
        command.env("SEMEL_STORE", self.store());
        if !config.is_empty() {
            std::fs::write(self.file("gateway.toml"), config).unwrap();
            command.arg("--config").arg(self.file("gateway.toml"));
        }
        command
    }

    pub(crate) fn start(&self, upstream: &Upstream, args: &[&str], config: &str) -> Gateway {
        self.start_before(&upstream.url(), args, config, None)
    }

    pub(crate) fn start_before(
        &self,
        upstream: &str,
        args: &[&str],
        config: &str,
        crash_at: Option<&str>,
    ) -> Gateway {
        let base = ["gateway", "--upstream", upstream, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let command = self.command(&[&base[..], args].concat(), config);
        let mut child = Child::spawn(command, crash_at).unwrap();
        let mut address = |what: &str| {
            let line = child.next_line(SOON).unwrap_or_else(|error| panic!("{error}"));
            line.strip_prefix(what).unwrap().parse().unwrap()
        };
        let (addr, admin) = (address("listening on "), address("admin on "));
        Gateway { addr, admin, child }
    }

    /// Another command on the same store.
    pub(crate) fn semel(&self, args: &[&str]) -> Output {
        let mut command = semel(args);
        command.env("SEMEL_STORE", self.store()).output().unwrap()
    }
}

pub(crate) fn semel(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(args).env_remove("SEMEL_STORE").stdin(Stdio::null());
    command
}

impl Gateway {
    /// A POST with a key.
    pub(crate) fn post(&self, path: &str, key: &str, body: &str) -> Answer {
        send(self.addr, "POST", path, &[("Idempotency-Key", key)], body)
    }

    pub(crate) fn metrics(&self) -> String {
        send(self.admin, "GET", "/metrics", &[], "").text()
    }

    /// Waits until the metrics have this line.
    pub(crate) fn wait_for_metric(&self, line: &str) {
        self.wait_for_line(line, |have| have == line);
    }

    /// The same for a counter at any number above 0.
    pub(crate) fn wait_for_any(&self, metric: &str) {
        let counts = |have: &str| have.strip_prefix(metric).is_some_and(|number| number != " 0");
        self.wait_for_line(metric, counts);
    }

    fn wait_for_line(&self, what: &str, is_it: impl Fn(&str) -> bool) {
        for _ in 0..4_000 {
            if self.metrics().lines().any(&is_it) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("{what}\nis not in\n{}", self.metrics());
    }

    pub(crate) fn stop(mut self) -> Finished {
        self.child.terminate().unwrap();
        self.child.wait(SOON).unwrap()
    }
}

/// One gateway and one service, both with defaults.
pub(crate) fn plain(args: &[&str]) -> (Place, Upstream, Gateway) {
    configured(&[&["--single-tenant"], args].concat(), "")
}

pub(crate) fn configured(args: &[&str], config: &str) -> (Place, Upstream, Gateway) {
    let (place, upstream) = (Place::new(), Upstream::start());
    let gateway = place.start(&upstream, args, config);
    (place, upstream, gateway)
}
