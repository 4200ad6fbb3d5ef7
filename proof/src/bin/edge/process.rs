//! A process that is ended with us, and how much memory it takes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::Failed;

pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> Result<Self, Failed> {
        Ok(Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?))
    }

    /// Starts a server of this program and returns where it listens.
    pub(crate) fn serve(kind: &str) -> Result<(Self, String), Failed> {
        let mut server = Self::start(Command::new(std::env::current_exe()?).args(["serve", kind]))?;
        let address = server.line(|line| !line.is_empty())?;
        Ok((server, address))
    }

    /// The first line it prints that is looked for.
    pub(crate) fn line(&mut self, wanted: impl Fn(&str) -> bool) -> Result<String, Failed> {
        let stdout = self.0.stdout.as_mut().ok_or("its output is not ours")?;
        for line in BufReader::new(stdout).lines().take(100) {
            let line = line?;
            if wanted(&line) {
                return Ok(line);
            }
        }
        Err("it did not say where it listens".into())
    }

    /// Resident memory in MiB.
    pub(crate) fn resident_mib(&self) -> Result<f64, Failed> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
        let kib: f64 = line.split_whitespace().nth(1).ok_or("no figure")?.parse()?;
        Ok(kib / 1024.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
