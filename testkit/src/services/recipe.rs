//! How one server is prepared, started and recognised as ready.

use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;

use super::error::{Error, Result};

/// Where one instance lives.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// `target/services/<name>`: logs, configuration, the record of what runs.
    pub(super) dir: PathBuf,
    /// What the server itself writes.
    pub(super) data: PathBuf,
    /// As many ports as the recipe asked for.
    pub(super) ports: Vec<u16>,
}

impl Place {
    pub(super) fn port(&self, index: usize) -> u16 {
        // The instance hands out exactly `Recipe::ports` of them; 0 would be refused by a server.
        self.ports.get(index).copied().unwrap_or(0)
    }
}

/// A program a recipe runs, and the Debian package that has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    pub(super) program: &'static str,
    pub(super) package: &'static str,
}

/// One process of a server, and the port it listens on.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) role: String,
    pub(super) command: Command,
    pub(super) port: u16,
}

/// The common shape of all servers.
pub(super) trait Recipe: Sync {
    /// Programs that must be installed.
    fn needs(&self) -> &'static [Need];
    /// Whether one of those programs is there.
    fn has(&self, name: &str) -> bool {
        program(name).is_some()
    }
    /// How many ports it takes.
    fn ports(&self) -> usize;
    /// The signal that makes it end in good order without waiting for its clients.
    fn stop(&self) -> Signal {
        Signal::TERM
    }
    /// Whether the data names the ports, so that other ports mean other data.
    fn data_knows_ports(&self) -> bool {
        false
    }
    /// The user the server must run as when we are root.
    fn user(&self) -> Option<&'static str> {
        None
    }
    /// Fetches what is not a Debian package. Cheap when it is there already.
    fn fetch(&self) -> Result<()> {
        Ok(())
    }
    /// Fills the empty data directory. A failure throws the directory away.
    fn prepare(&self, at: &Place) -> Result<()>;
    /// Removes what a killed server has left behind and would stumble over.
    fn clear(&self, _at: &Place) -> Result<()> {
        Ok(())
    }
    /// The processes in the order of their start; each is waited for before the next.
    fn tasks(&self, at: &Place) -> Result<Vec<Task>>;
    /// What remains to be done once all processes listen. Harmless to repeat.
    fn assemble(&self, _at: &Place) -> Result<()> {
        Ok(())
    }
    /// Whether it serves now.
    fn is_ready(&self, at: &Place) -> bool;
    /// Its address, as in its environment variable.
    fn url(&self, at: &Place) -> String;
}

/// The path of a program. Servers are in `sbin`, which is not on everybody's `PATH`.
pub(super) fn program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.exists());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin", "/usr/bin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// A command for a program that has to be installed.
pub(super) fn command(name: &str) -> Result<Command> {
    program(name).map(Command::new).ok_or_else(|| Error::new(format!("the program {name} is not installed")))
}

/// Runs a command to its end; its output is part of the error.
pub(super) fn run(mut command: Command) -> Result<String> {
    let shown = format!("{command:?}");
    let output = command
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|error| Error::new(format!("{shown}: {error}")))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(Error::new(format!("{shown} failed ({}):\n{}\n{}", output.status, stdout.trim(), stderr.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_or_named() {
        assert!(program("sh").is_some());
        assert!(program("/bin/sh").is_some());
        assert!(program("/bin/no-such-program").is_none());
        let error = command("no-such-program").unwrap_err();
        assert!(error.to_string().contains("no-such-program"));
    }

    #[test]
    fn a_failed_command_tells_what_it_said() {
        let mut failing = Command::new("sh");
        failing.args(["-c", "echo out; echo why >&2; exit 3"]);
        let error = run(failing).unwrap_err().to_string();
        assert!(error.contains("why") && error.contains("out") && error.contains('3'), "{error}");
    }
}
