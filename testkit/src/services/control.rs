//! Faults of whole servers, made by a test that has the server to itself.

use super::access::{absent, enter, find};
use super::catalogue::Service;
use super::error::{Error, Result};
use super::instance::{Instance, State, stop, up_with};
use super::lock::{Lock, Mode};

/// A server that a test has alone and may therefore kill, pause and start. It is a copy of its own: tests that share
/// the other one go on meanwhile.
///
/// When this is dropped the server is made to run again, also after a panic: a test that fails
/// must not make those after it fail.
#[derive(Debug)]
pub struct Alone {
    instance: Instance,
    url: String,
    /// It runs with options others do not expect.
    changed: bool,
    _lock: Lock,
}

/// Takes a server alone, starting the copy for it if need be, and keeps it from others until dropped.
/// `None` when the run goes without it.
///
/// # Panics
/// When the server is neither there nor left out on purpose, or its copy does not come up.
#[must_use]
pub fn alone(service: Service) -> Option<Alone> {
    // A given server has no copy: then tests take turns on it.
    let given = service.given();
    let instance = if given.is_some() { Instance::shared(service) } else { Instance::alone(service) };
    let lock = enter(instance, Mode::Exclusive)?;
    let url = given.unwrap_or_else(|| {
        if find(service).is_none() {
            absent(service);
        }
        match up_with(instance, &[]) {
            Ok(_) => instance.url().unwrap_or_else(|| panic!("{service} was started, but has ended")),
            Err(error) => panic!("{error}"),
        }
    });
    Some(Alone { instance, url, changed: false, _lock: lock })
}

impl Alone {
    /// The server's address. It stays the same over a restart unless its port was taken meanwhile.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// SIGKILL to all processes of the server. It does not run when this returns.
    pub fn kill(&self) -> Result<()> {
        let state = self.ours()?;
        // Added up by `cargo xtask prove`.
        println!("figures: 1 server kills");
        // The last started first, as when stopping: no process restarts what is killed.
        for process in state.processes.iter().rev() {
            process.kill()?;
        }
        Ok(())
    }

    /// Stops the server in order, by its own signal. [`start`](Self::start) starts it again.
    pub fn stop(&self) -> Result<()> {
        self.ours()?;
        stop(self.instance).map(drop)
    }

    /// SIGSTOP: the server keeps its connections and answers nothing.
    pub fn pause(&self) -> Result<()> {
        Ok(self.ours()?.processes.iter().try_for_each(|process| process.pause())?)
    }

    /// SIGCONT after [`pause`](Self::pause).
    pub fn resume(&self) -> Result<()> {
        Ok(self.ours()?.processes.iter().try_for_each(|process| process.resume())?)
    }

    /// Starts the server if it does not run, on the data it had, and waits until it serves.
    pub fn start(&mut self) -> Result<()> {
        self.ours()?;
        up_with(self.instance, &[])?;
        let gone = || Error::new("it was started, but has ended").of(self.instance.service);
        self.url = self.instance.url().ok_or_else(gone)?;
        Ok(())
    }

    /// Kills the server and starts it again.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.start()
    }

    /// Kills the server and starts it again with options of its own, which it has until the next start.
    pub fn restart_with(&mut self, options: &[&str]) -> Result<()> {
        self.kill()?;
        self.changed = true;
        up_with(self.instance, options)?;
        self.start()
    }

    fn ours(&self) -> Result<State> {
        let service = self.instance.service;
        match service.given() {
            None => Ok(State::load(self.instance)),
            Some(_) => Err(Error::new(format!(
                "its address comes from {}; only an instance of this checkout can be killed or paused",
                service.env()
            ))
            .of(service)),
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if self.changed
            && let Err(error) = self.kill()
        {
            eprintln!("could not stop the server after a test: {error}");
        }
        if self.instance.service.given().is_none()
            && let Err(error) = up_with(self.instance, &[])
        {
            eprintln!("could not bring the server back after a test: {error}");
        }
    }
}
