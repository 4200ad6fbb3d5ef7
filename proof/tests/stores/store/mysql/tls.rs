//! TLS to MariaDB: a server of the test's own, because certificates are given at the start only.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use semel::store::mysql::MysqlStore;
use semel::store::{Claimed, ErrorKind, Fate, Store};
use sqlx::{Connection, MySqlConnection};
use testkit::certificates::certificates;
use testkit::child::Child;
use testkit::services::{Service, require, spare_port};

use super::support::{PATIENT, claim_of, completed, run, run_of, soon};

/// Ended with the test.
struct Server {
    _child: Child,
    port: u16,
}

impl Server {
    async fn start(dir: &Path) -> Self {
        let data = dir.join("data");
        // Root has to say that it means it, in a directory of its own as here.
        let id = Command::new("id").arg("-u").output().unwrap();
        let user = (id.stdout.trim_ascii() == b"0").then_some("--user=root");
        let mut install = Command::new("mariadb-install-db");
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        install.arg(format!("--datadir={}", data.display())).args(user).current_dir(dir);
        let ended = install.output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        let port = spare_port();
        let mut command = Command::new("mariadbd");
        command.arg("--no-defaults").args(user).current_dir(&data);
        command.args([format!("--datadir={}", data.display()), format!("--port={port}")]);
        command.args(["--bind-address=127.0.0.1", "--socket=server.sock", "--pid-file=server.pid"]);
        command.args(["--skip-name-resolve", "--innodb-buffer-pool-size=16M"]);
        for (option, file) in [("ca", "ca.pem"), ("cert", "server.pem"), ("key", "server.key")] {
            command.arg(format!("--ssl-{option}={}", dir.join(file).display()));
        }
        let server = Self { _child: Child::spawn(command, None).unwrap(), port };
        let mut root = server.root().await;
        run(
            &mut root,
            "CREATE DATABASE semel; CREATE USER sealed@'127.0.0.1' REQUIRE SSL; \
             GRANT ALL ON semel.* TO sealed@'127.0.0.1'",
        )
        .await;
        server
    }

    async fn root(&self) -> MySqlConnection {
        let url = format!("mysql://root@127.0.0.1:{}/mysql?ssl-mode=disabled", self.port);
        for _ in 0..600 {
            if let Ok(connection) = MySqlConnection::connect(&url).await {
                return connection;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the server of this test does not come up");
    }

    /// Of a user who gets in encrypted or not at all.
    fn url(&self, host: &str, more: &str) -> String {
        format!("mysql://sealed@{host}:{}/semel{PATIENT}&{more}", self.port)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_used_where_asked_and_a_certificate_by_a_stranger_is_refused() {
    // Not that server, but its programs.
    let Some(_) = require(Service::Mariadb) else { return };
    let at = tempfile::tempdir().unwrap();
    certificates(at.path());
    let server = Server::start(at.path()).await;
    let with = |host: &str, mode: &str, ca: &str| {
        server.url(host, &format!("ssl-mode={mode}&ssl-ca={}", at.path().join(ca).display()))
    };

    let opened = [
        server.url("127.0.0.1", ""),
        server.url("127.0.0.1", "ssl-mode=required"),
        with("127.0.0.1", "verify_ca", "ca.pem"),
        with("localhost", "verify_identity", "ca.pem"),
    ];
    for (n, url) in opened.iter().enumerate() {
        let store = soon(MysqlStore::open(url)).await.unwrap_or_else(|error| panic!("{url}: {error}"));
        let claim = claim_of(&format!("over-{n}"));
        let ticket = run_of(&store, &claim).await;
        store.finish(ticket, completed("sealed")).await.unwrap();
        assert!(matches!(soon(store.claim(claim)).await.unwrap(), Claimed::Replay(_)));
    }
    // Unencrypted the server does not let this user in: what went before was encrypted.
    let error = soon(MysqlStore::open(&server.url("127.0.0.1", "ssl-mode=disabled"))).await.unwrap_err();
    assert_eq!(error.fate(), Fate::NotApplied, "{error}");

    // A certificate by somebody else, and the right one for another name.
    let refused = [
        with("localhost", "verify_identity", "other.pem"),
        with("127.0.0.1", "verify_ca", "other.pem"),
        with("127.0.0.1", "verify_identity", "ca.pem"),
        server.url("localhost", "ssl-mode=verify_identity"),
    ];
    for url in refused {
        let error = soon(MysqlStore::open(&url)).await.err().unwrap_or_else(|| panic!("{url} was believed"));
        assert_eq!(error.fate(), Fate::NotApplied, "{url}: {error}");
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Misconfigured), "{url}: {error}");
        let mut causes = format!("{error} {error:?}").to_lowercase();
        causes.retain(|c| c.is_ascii_alphabetic());
        assert!(causes.contains("certificate"), "{url}: {error:?}");
    }
    let error =
        soon(MysqlStore::open(&with("localhost", "verify_identity", "nothing.pem"))).await.unwrap_err();
    assert_eq!(error.fate(), Fate::NotApplied, "{error}");
}
