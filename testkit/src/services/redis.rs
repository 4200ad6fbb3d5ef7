//! Redis with append-only persistence.

use std::process::Command;

use super::error::Result;
use super::probe;
use super::recipe::{Need, Place, Recipe, Task, command};

pub(super) const NEEDS: &[Need] = &[
    Need { program: "redis-server", package: "redis-server" },
    Need { program: "redis-cli", package: "redis-tools" },
];

pub(super) struct Redis;

impl Recipe for Redis {
    fn needs(&self) -> &'static [Need] {
        NEEDS
    }

    fn ports(&self) -> usize {
        1
    }

    fn prepare(&self, _at: &Place) -> Result<()> {
        Ok(())
    }

    fn tasks(&self, at: &Place) -> Result<Vec<Task>> {
        let port = at.port(0);
        let mut command = server(port)?;
        command.current_dir(&at.data);
        Ok(vec![Task { role: "server".to_owned(), command, port }])
    }

    fn is_ready(&self, at: &Place) -> bool {
        // A server that still loads its file answers -LOADING.
        probe::redis(at.port(0), "PING").is_some_and(|answer| answer.starts_with("+PONG"))
    }

    fn url(&self, at: &Place) -> String {
        format!("redis://127.0.0.1:{}", at.port(0))
    }
}

/// The command line both kinds share. The working directory is where the data goes.
pub(super) fn server(port: u16) -> Result<Command> {
    let mut command = command("redis-server")?;
    command.arg("--bind").arg("127.0.0.1").arg("--port").arg(port.to_string());
    command.args(["--daemonize", "no", "--save", "", "--appendonly", "yes"]);
    // The default, `everysec`, may lose what it has acknowledged when the machine dies. Tests ask
    // what survives a crash, so an acknowledged write is one on disk.
    command.args(["--appendfsync", "always"]);
    Ok(command)
}
