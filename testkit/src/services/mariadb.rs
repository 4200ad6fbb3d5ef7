//! MariaDB, which speaks the protocol of MySQL.

use std::time::Duration;

use super::error::Result;
use super::process::{is_listening, wait_until};
use super::recipe::{Need, Place, Recipe, Task, command, run};

const ASSEMBLE_SECONDS_MAX: u64 = 120;

pub(super) struct Mariadb;

impl Recipe for Mariadb {
    fn needs(&self) -> &'static [Need] {
        &[
            Need { program: "mariadbd", package: "mariadb-server" },
            Need { program: "mariadb-install-db", package: "mariadb-server" },
            Need { program: "mariadb-admin", package: "mariadb-client" },
        ]
    }

    fn ports(&self) -> usize {
        1
    }

    fn prepare(&self, at: &Place) -> Result<()> {
        let mut install = command("mariadb-install-db")?;
        // Nothing of the machine's own configuration; a root without a password on loopback.
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        install.arg(format!("--datadir={}", at.data.display()));
        install.args(user()).current_dir(&at.data);
        run(install).map(drop)
    }

    fn tasks(&self, at: &Place) -> Result<Vec<Task>> {
        let port = at.port(0);
        let mut command = command("mariadbd")?;
        command.arg("--no-defaults").args(user()).current_dir(&at.data);
        command.arg(format!("--datadir={}", at.data.display()));
        command.arg(format!("--tmpdir={}", at.data.display()));
        command.arg(format!("--port={port}"));
        // Relative to the data: an absolute path may exceed the 107 bytes of a socket's address.
        command.args(["--bind-address=127.0.0.1", "--socket=server.sock", "--pid-file=server.pid"]);
        command.args(["--skip-name-resolve", "--innodb-buffer-pool-size=64M"]);
        Ok(vec![Task { role: "server".to_owned(), command, port }])
    }

    fn assemble(&self, at: &Place) -> Result<()> {
        // A busy machine may be late to answer; one that is dead does not listen any more.
        let mut made = Ok(());
        wait_until(Duration::from_secs(ASSEMBLE_SECONDS_MAX), || {
            made = client(at, "mariadb", &["-e", "CREATE DATABASE IF NOT EXISTS semel"]);
            made.is_ok() || !is_listening(at.port(0))
        });
        made
    }

    fn is_ready(&self, at: &Place) -> bool {
        client(at, "mariadb-admin", &["ping"]).is_ok()
    }

    fn url(&self, at: &Place) -> String {
        format!("mysql://root@127.0.0.1:{}/semel", at.port(0))
    }
}

pub(super) fn client(at: &Place, program: &str, rest: &[&str]) -> Result<()> {
    let mut command = command(program)?;
    command.args(["--no-defaults", "--protocol=tcp", "-h", "127.0.0.1", "-u", "root"]);
    command.arg("--connect-timeout=5").arg(format!("--port={}", at.port(0))).args(rest);
    run(command).map(drop)
}

/// As root, the server wants the user named. The instance is private and only on loopback, and another user could not
/// reach a checkout in root's home.
pub(super) fn user() -> Option<&'static str> {
    rustix::process::geteuid().is_root().then_some("--user=root")
}
