//! The real `semel gateway` as a child process.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use testkit::child::Child;

use crate::SOON;
use crate::wire::ask;

/// Payments can be looked up, refunds cannot.
pub(crate) const CONFIG: &str = r#"
log = "warn"
[scope]
single_tenant = true
[timeouts]
[[operation]]
match = "POST /v1/payment_intents"
name = "payment_intent.create"
lookup = "GET /v1/payment_intents/by-key/{key}"
lookup_absent = 404
lookup_settle = "300ms"
[[operation]]
match = "POST /v1/refunds"
name = "refund.create"
[[operation]]
match = "POST /v1/files"
name = "file.create"
"#;

/// Killed when dropped.
pub(crate) struct Gateway {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    directory: Option<tempfile::TempDir>,
}

impl Gateway {
    /// Starts on a store of its own.
    pub(crate) fn start(upstream: SocketAddr, config: &str) -> Self {
        let directory = testkit::scratch::directory();
        let mut gateway = Self::on(directory.path(), upstream, config, None);
        gateway.directory = Some(directory);
        gateway
    }

    /// Starts on the store in a directory, with a crash point if one is named.
    pub(crate) fn on(directory: &Path, upstream: SocketAddr, config: &str, crash_at: Option<&str>) -> Self {
        let file = directory.join("gateway.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command
            .args(["gateway", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--upstream", &format!("http://{}", upstream), "--config"])
            .arg(&file)
            .env("SEMEL_STORE", format!("sqlite:{}", directory.join("semel.db").display()));
        let mut child = Child::spawn(command, crash_at).unwrap();
        let mut address = |what: &str| -> SocketAddr {
            let line = child.next_line(SOON).unwrap_or_else(|error| {
                panic!("no address from the gateway: {error}: {:?}", child.wait(SOON))
            });
            line.strip_prefix(what).unwrap().parse().unwrap()
        };
        let (address, admin) = (address("listening on "), address("admin on "));
        Self { child, address, admin, directory: None }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The admin listener's answer at a path.
    pub(crate) fn admin(&self, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n");
        let (head, body) = ask(self.admin, request.as_bytes()).unwrap();
        assert_eq!(head.status(), 200, "{path}");
        String::from_utf8(body).unwrap()
    }
}
