//! This checkout's instance of a server: what is recorded of it, starting and stopping it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::catalogue::Service;
use super::error::{Error, Result};
use super::lock::{Lock, Mode};
use super::ports;
use super::process::{Process, is_listening, tail, wait_until};
use super::recipe::{Place, Recipe};

const START_SECONDS_MAX: u64 = 120;
const STOP_SECONDS_MAX: u64 = 30;
const LOCK_SECONDS_MAX: u64 = 300;
/// Another process may take a port between our choice and the server's listening.
const ATTEMPTS_MAX: usize = 3;
const PORT_PATIENCE: Duration = Duration::from_secs(5);
/// Raised when a recipe prepares its data differently: older data is thrown away.
const DATA_REVISION: &str = "2";

/// Where the servers of this checkout live: `target/services`, whatever `CARGO_TARGET_DIR` says,
/// so that the command line and every test binary agree.
#[must_use]
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).join("target").join("services")
}

/// One of the two copies of a server that a checkout may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Instance {
    pub(super) service: Service,
    /// The copy for tests that kill, pause or flood it. The other one is shared by all tests, which therefore never
    /// wait for those.
    pub(super) alone: bool,
}

impl Instance {
    pub(super) fn shared(service: Service) -> Self {
        Self { service, alone: false }
    }

    pub(super) fn alone(service: Service) -> Self {
        Self { service, alone: true }
    }

    fn recipe(self) -> &'static dyn Recipe {
        self.service.recipe()
    }

    /// Keeps the ports of all copies of a checkout apart.
    fn slot(self) -> u16 {
        let others = u16::try_from(Service::ALL.len()).unwrap_or(u16::MAX);
        self.service.slot() + if self.alone { others } else { 0 }
    }

    /// Its address, if it runs.
    pub(super) fn url(self) -> Option<String> {
        let state = State::load(self);
        state.is_running().then(|| self.recipe().url(&place(self, &state.ports)))
    }
}

/// The result of starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Up {
    /// It was not running and is now.
    Started,
    /// It was running.
    Already,
    /// Its address is in the environment: not our server, nothing was done.
    Given,
}

/// Whether a server can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// It runs and answers.
    Ready,
    /// Its processes run, but it does not answer (or is paused).
    Unresponsive,
    /// It does not run, or only a part of it does.
    Down,
    /// Its address is in the environment.
    Given,
}

/// What is known about one server.
#[derive(Debug, Clone)]
pub struct Status {
    /// Whether it can be used.
    pub condition: Condition,
    /// Its address, when it runs or is given.
    pub url: Option<String>,
    /// The processes that run, by role.
    pub processes: Vec<(String, u32)>,
    /// Its log, when it is ours.
    pub log: PathBuf,
}

/// The record under `target/services/<name>/state.json`.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) ports: Vec<u16>,
    pub(super) processes: Vec<Process>,
    pub(super) expected: usize,
}

impl State {
    pub(super) fn load(instance: Instance) -> Self {
        // An unreadable record counts as empty: the worst that follows is other ports.
        fs::read_to_string(dir_of(instance).join("state.json"))
            .ok()
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or_default()
    }

    fn save(&self, instance: Instance) -> Result<()> {
        let path = dir_of(instance).join("state.json");
        let text = serde_json::to_string_pretty(self).map_err(|error| Error::new(error.to_string()))?;
        // By rename, or a reader may meet half a record.
        let partial = path.with_extension("partial");
        fs::write(&partial, text)?;
        Ok(fs::rename(partial, path)?)
    }

    pub(super) fn is_running(&self) -> bool {
        !self.processes.is_empty()
            && self.processes.len() == self.expected
            && self.processes.iter().all(Process::is_alive)
    }
}

/// Where the shared copy of a server lives.
pub(super) fn dir(service: Service) -> PathBuf {
    dir_of(Instance::shared(service))
}

pub(super) fn dir_of(instance: Instance) -> PathBuf {
    let name = instance.service.name();
    root().join(if instance.alone { format!("{name}-alone") } else { name.to_owned() })
}

fn log(instance: Instance) -> PathBuf {
    dir_of(instance).join("log")
}

pub(super) fn place(instance: Instance, ports: &[u16]) -> Place {
    let dir = dir_of(instance);
    let data = data_dir(instance.recipe(), &dir);
    Place { dir, data, ports: ports.to_vec() }
}

/// A server that must not run as root cannot reach data below a directory closed to all but root,
/// such as root's home. Its data is then under `/var/tmp`, in a directory of this checkout's own.
pub(super) fn data_dir(recipe: &dyn Recipe, dir: &Path) -> PathBuf {
    let reachable = |dir: &Path| {
        dir.ancestors().all(|dir| fs::metadata(dir).map_or(true, |meta| meta.permissions().mode() & 1 == 1))
    };
    if recipe.user().is_none() || !rustix::process::geteuid().is_root() || reachable(dir) {
        return dir.join("data");
    }
    PathBuf::from(format!("/var/tmp/semel-{:016x}", ports::hash(dir.as_os_str().as_encoded_bytes())))
}

/// One start or stop of a service at a time, across processes.
fn guard(instance: Instance) -> Result<Lock> {
    let path = dir_of(instance).join("state.lock");
    Lock::take(&path, Mode::Exclusive, Duration::from_secs(LOCK_SECONDS_MAX))
}

/// Starts a server unless it runs, and waits until it serves.
pub fn up(service: Service) -> Result<Up> {
    up_with(Instance::shared(service), &[])
}

/// The same; if it has to be started, each of its processes also gets these options.
pub(super) fn up_with(instance: Instance, options: &[&str]) -> Result<Up> {
    let service = instance.service;
    if service.given().is_some() {
        return Ok(Up::Given);
    }
    let work = || {
        service.recipe().fetch()?;
        let _guard = guard(instance)?;
        start(instance, options)
    };
    work().map_err(|error| error.of(service))
}

/// Stops a server, and the copy that tests had alone. `true` when something of it was running.
pub fn down(service: Service) -> Result<bool> {
    let work = |instance: Instance| {
        let _guard = guard(instance)?;
        stop(instance)
    };
    let (shared, alone) = (Instance::shared(service), Instance::alone(service));
    let stopped = work(shared).map_err(|error| error.of(service))?;
    // Most checkouts never had the other one, and need no folder for it.
    let other = dir_of(alone).exists() && work(alone).map_err(|error| error.of(service))?;
    Ok(stopped || other)
}

/// Reports what runs.
#[must_use]
pub fn status(service: Service) -> Status {
    let instance = Instance::shared(service);
    let log = log(instance);
    if let Some(url) = service.given() {
        return Status { condition: Condition::Given, url: Some(url), processes: Vec::new(), log };
    }
    let state = State::load(instance);
    let at = place(instance, &state.ports);
    let alive = state.processes.iter().filter(|process| process.is_alive());
    let processes: Vec<_> = alive.map(|process| (process.role.clone(), process.pid)).collect();
    let condition = match state.is_running() {
        false => Condition::Down,
        true if service.recipe().is_ready(&at) => Condition::Ready,
        true => Condition::Unresponsive,
    };
    let url = state.is_running().then(|| service.recipe().url(&at));
    Status { condition, url, processes, log }
}

/// The caller holds the guard, or has the server alone.
pub(super) fn stop(instance: Instance) -> Result<bool> {
    let mut state = State::load(instance);
    let mut stopped = false;
    // The last started ends first: RabbitMQ's name server outlives its broker.
    for process in state.processes.iter().rev().filter(|process| process.is_alive()) {
        process.stop(instance.recipe().stop(), Duration::from_secs(STOP_SECONDS_MAX))?;
        stopped = true;
    }
    if !state.processes.is_empty() {
        state.processes.clear();
        state.save(instance)?;
    }
    Ok(stopped)
}

/// The caller holds the guard.
fn start(instance: Instance, options: &[&str]) -> Result<Up> {
    let recipe = instance.recipe();
    let state = State::load(instance);
    if state.is_running() {
        let at = place(instance, &state.ports);
        for process in &state.processes {
            process.resume()?;
        }
        // It may be just dying: then there is nothing to wait for.
        let patience = Duration::from_secs(STOP_SECONDS_MAX);
        wait_until(patience, || recipe.is_ready(&at) || !state.is_running());
        if state.is_running() && recipe.is_ready(&at) {
            return Ok(Up::Already);
        }
    }
    // Partly running, or not answering: only a fresh start repairs it.
    stop(instance)?;
    let mut ports = state.ports;
    let mut attempt = 0;
    loop {
        attempt += 1;
        let old = ports.clone();
        // A server that was killed under its clients may leave connections for a moment. Waits for them, because its
        // users know it by its port.
        let free = || ports.iter().all(|port| ports::is_free(*port));
        if ports.len() != recipe.ports() || !wait_until(PORT_PATIENCE, free) {
            ports = ports::choose(&root(), instance.slot(), recipe.ports())
                .ok_or_else(|| Error::new("no free ports between 20000 and 31999"))?;
        }
        let at = place(instance, &ports);
        if recipe.data_knows_ports() && !old.is_empty() && old != ports {
            forget_data(&at)?;
        }
        let failure = match prepare(recipe, &at).and_then(|()| launch(instance, &at, options)) {
            Ok(()) => return Ok(Up::Started),
            Err(error) => error,
        };
        stop(instance)?;
        let taken = ports.iter().any(|port| !ports::is_free(*port));
        if !taken || attempt == ATTEMPTS_MAX {
            let log = log(instance);
            let shown = log.display();
            return Err(Error::new(format!("{failure}\n--- the end of {shown}:\n{}", tail(&log, 20))));
        }
    }
}

fn forget_data(at: &Place) -> Result<()> {
    for dir in [&at.data, &at.dir.join("prepared")] {
        match fs::metadata(dir) {
            Ok(meta) if meta.is_dir() => fs::remove_dir_all(dir)?,
            Ok(_) => fs::remove_file(dir)?,
            Err(_) => {}
        }
    }
    Ok(())
}

/// Fills the data directory once. The mark is written last: half-prepared data is thrown away.
fn prepare(recipe: &dyn Recipe, at: &Place) -> Result<()> {
    let mark = at.dir.join("prepared");
    if at.data.is_dir() && fs::read_to_string(&mark).is_ok_and(|text| text == DATA_REVISION) {
        return Ok(());
    }
    forget_data(at)?;
    fs::create_dir_all(&at.data)?;
    if let Some(user) = recipe.user().filter(|_| rustix::process::geteuid().is_root()) {
        let (uid, gid) = ids_of(user)?;
        std::os::unix::fs::chown(&at.data, Some(uid), Some(gid))?;
        fs::set_permissions(&at.data, fs::Permissions::from_mode(0o700))?;
    }
    recipe.prepare(at)?;
    Ok(fs::write(mark, DATA_REVISION)?)
}

pub(super) fn ids_of(user: &str) -> Result<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd")?;
    let ids = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == user).then_some(())?;
        Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    ids.ok_or_else(|| Error::new(format!("there is no user {user} on this machine")))
}

fn launch(instance: Instance, at: &Place, options: &[&str]) -> Result<()> {
    let recipe = instance.recipe();
    recipe.clear(at)?;
    let tasks = recipe.tasks(at)?;
    let mut state = State { ports: at.ports.clone(), processes: Vec::new(), expected: tasks.len() };
    let until = Duration::from_secs(START_SECONDS_MAX);
    let log = log(instance);
    rotate(&log)?;
    for mut task in tasks {
        task.command.args(options);
        let process = Process::spawn(&task.role, task.command, &log)?;
        state.processes.push(process.clone());
        // After every process: if we are killed now, `down` still knows what to stop.
        state.save(instance)?;
        let listens = wait_until(until, || is_listening(task.port) || !process.is_alive());
        if !listens || !process.is_alive() {
            return Err(Error::new(format!("its {} did not come up", task.role)));
        }
    }
    recipe.assemble(at)?;
    let ready = wait_until(until, || recipe.is_ready(at) || !state.is_running());
    (ready && state.is_running()).then_some(()).ok_or_else(|| Error::new("it runs but does not serve"))
}

/// Keeps the log of the run before last from growing without end.
fn rotate(log: &Path) -> Result<()> {
    const LOG_BYTES_MAX: u64 = 8 * 1024 * 1024;
    if fs::metadata(log).is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
        fs::rename(log, log.with_extension("old"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_from_the_machine() {
        assert_eq!(ids_of("root").unwrap(), (0, 0));
        assert!(ids_of("no-such-user").is_err());
    }

    #[test]
    fn a_record_with_a_part_missing_is_not_running() {
        assert!(!State::default().is_running());
        let half = State { expected: 2, ..State::default() };
        assert!(!half.is_running());
    }

    #[test]
    fn a_record_reads_back() {
        let state = State { ports: vec![20_001, 20_002], processes: Vec::new(), expected: 1 };
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<State>(&text).unwrap().ports, state.ports);
    }
}
