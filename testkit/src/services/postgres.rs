//! PostgreSQL with logical replication.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::error::{Error, Result};
use super::process::{wait_until, working_in};
use super::recipe::{Need, Place, Recipe, Task, command, program, run};

pub(super) const USER: &str = "postgres";

pub(super) struct Postgres;

impl Recipe for Postgres {
    fn needs(&self) -> &'static [Need] {
        &[Need { program: "postgres", package: "postgresql" }]
    }

    fn has(&self, program: &str) -> bool {
        bin(program).is_ok()
    }

    fn ports(&self) -> usize {
        1
    }

    fn stop(&self) -> Signal {
        // "Fast". TERM would wait for clients to leave by themselves.
        Signal::INT
    }

    fn user(&self) -> Option<&'static str> {
        Some(USER)
    }

    fn prepare(&self, at: &Place) -> Result<()> {
        init(&at.data)
    }

    /// PostgreSQL trusts the pid in its lock file, and a zombie or another process may have that pid. We know better
    /// what runs. But the file also guards against backends that outlive their postmaster: it is removed only when no
    /// process works in the data directory any more.
    fn clear(&self, at: &Place) -> Result<()> {
        unlock(&at.data)
    }

    fn tasks(&self, at: &Place) -> Result<Vec<Task>> {
        let port = at.port(0);
        let mut command = as_user(&bin("postgres")?)?;
        serve(&mut command, &at.data, port);
        Ok(vec![Task { role: "server".to_owned(), command, port }])
    }

    fn is_ready(&self, at: &Place) -> bool {
        answers(at.port(0))
    }

    fn url(&self, at: &Place) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/postgres", at.port(0))
    }
}

pub(super) fn init(data: &Path) -> Result<()> {
    let mut init = as_user(&bin("initdb")?)?;
    init.arg("-D").arg(data).current_dir(data);
    // Nothing is written that matters before the server itself flushes: -N is for initdb only.
    init.args(["-U", USER, "-A", "trust", "--locale=C.UTF-8", "-E", "UTF8", "-N"]);
    run(init).map(drop)
}

pub(super) fn unlock(data: &Path) -> Result<()> {
    let lock = data.join("postmaster.pid");
    if !lock.exists() {
        return Ok(());
    }
    if !wait_until(Duration::from_secs(10), || working_in(data).is_empty()) {
        let left = working_in(data);
        return Err(Error::new(format!("processes {left:?} of a killed server do not end")));
    }
    Ok(std::fs::remove_file(lock)?)
}

/// Sets what a server serves, and how.
pub(super) fn serve(command: &mut Command, data: &Path, port: u16) {
    command.arg("-D").arg(data).current_dir(data);
    let settings = [
        "listen_addresses=127.0.0.1",
        // TCP only: a socket's path is limited to 107 bytes and checkouts may be deep.
        "unix_socket_directories=",
        "wal_level=logical",
        "max_replication_slots=20",
        "max_wal_senders=20",
        "max_connections=200",
    ];
    command.arg("-p").arg(port.to_string());
    for setting in settings {
        command.arg("-c").arg(setting);
    }
}

pub(super) fn answers(port: u16) -> bool {
    let Ok(program) = bin("pg_isready") else { return false };
    let mut command = Command::new(program);
    command.args(["-q", "-h", "127.0.0.1", "-U", USER, "-t", "2", "-p"]).arg(port.to_string());
    run(command).is_ok()
}

/// A program of the newest version installed. Debian keeps those of each major version apart.
pub(super) fn bin(name: &str) -> Result<PathBuf> {
    // Not by name: 9 would come after 15.
    let version = |path: &PathBuf| -> u32 {
        path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok()).unwrap_or(0)
    };
    std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|dir| dir.join("bin").join(name).exists())
        .max_by_key(version)
        .map(|dir| dir.join("bin").join(name))
        .or_else(|| program(name))
        .ok_or_else(|| Error::new(format!("PostgreSQL's {name} is not installed")))
}

/// PostgreSQL refuses to run as root. `setpriv` replaces itself by the server, so that the pid we record is the
/// server's; `runuser` would stay in between and kill it hard when asked to end.
pub(super) fn as_user(server: &Path) -> Result<Command> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Command::new(server));
    }
    let mut setpriv = command("setpriv")?;
    setpriv.args(["--reuid", USER, "--regid", USER, "--init-groups", "--"]).arg(server);
    Ok(setpriv)
}
