//! What `test` and `prove` have in common: a build with everything, and the servers it needs.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use testkit::services::{SKIP_LOG_ENV, Service, WITHOUT_ENV};

use crate::binaries::{self, Binary};
use crate::phase::{self, Phase};
use crate::{cargo, services, toolchain};

/// What this run has started and has to stop, also when it is interrupted.
static STARTED: Mutex<Vec<Service>> = Mutex::new(Vec::new());

/// A build with all features, and servers that run.
pub(crate) struct Suite {
    pub(crate) binaries: Vec<Binary>,
    without: Vec<Service>,
    pub(crate) skip_log: PathBuf,
    /// All programs were built: a test that starts some need not build them once more.
    whole: bool,
    /// Where the libraries of the compiler are: tests of macros need them.
    libraries: PathBuf,
}

/// Why it could not be set up: a failed phase, or a name and a message.
pub(crate) enum NotReady {
    Phase(Phase),
    Named(String, String),
}

impl Suite {
    /// Builds the tests of `packages`, or of all, and starts the servers meanwhile: neither waits for the other.
    pub(crate) fn prepare(packages: &[String], chosen: &[Service]) -> Result<Self, NotReady> {
        let failed = |name: &str, message: String| NotReady::Named(name.to_owned(), message);
        toolchain::ensure().map_err(|message| failed("toolchain", message))?;
        let logs = phase::logs();
        let skip_log = logs.join("skipped.log");
        let made = fs::create_dir_all(&logs).and_then(|()| fs::write(&skip_log, ""));
        made.map_err(|error| failed("logs", format!("{}: {error}", logs.display())))?;
        let (built, missing) = std::thread::scope(|scope| {
            let up = scope.spawn(|| start(chosen));
            (build(packages), up.join().unwrap_or_else(|_| chosen.to_vec()))
        });
        let binaries = built.map_err(NotReady::Phase)?;
        if let Some(service) = missing.first() {
            let log = testkit::services::status(*service).log;
            let hint =
                format!("could not be started; --without {service} skips its tests; log: {}", log.display());
            return Err(failed(service.name(), hint));
        }
        let without = Service::ALL.into_iter().filter(|service| !chosen.contains(service)).collect();
        Ok(Self { binaries, without, skip_log, whole: packages.is_empty(), libraries: libraries() })
    }

    /// The environment of a test.
    pub(crate) fn environment(&self, command: &mut Command) {
        let without: Vec<_> = self.without.iter().map(|service| service.name()).collect();
        command.env(WITHOUT_ENV, without.join(",")).env(SKIP_LOG_ENV, &self.skip_log);
        command.env("LD_LIBRARY_PATH", &self.libraries);
        if self.whole {
            command.env("SEMEL_AS_BUILT", "1");
        }
    }
}

fn build(packages: &[String]) -> Result<Vec<Binary>, Phase> {
    // Like `cargo test --no-run`, and the binaries of the examples as well.
    let last = ["--bins", "--tests", "--examples", "--message-format=json-render-diagnostics"];
    let build = phase::run("build", cargo::command(&["build"], &cargo::packages(packages), &last));
    if build.ok { Ok(binaries::of_build(&build.output())) } else { Err(build) }
}

/// Starts servers and remembers those that did not run before. Returns those that could not be started.
fn start(chosen: &[Service]) -> Vec<Service> {
    let begin = Instant::now();
    let absent = chosen.iter().copied().filter(|service| testkit::services::find(*service).is_none());
    // Recorded before they start: an interruption may come in the middle of it.
    STARTED.lock().unwrap_or_else(PoisonError::into_inner).extend(absent);
    let outcomes = services::up(chosen).into_iter();
    let missing: Vec<_> = outcomes.filter_map(|(service, done)| done.is_err().then_some(service)).collect();
    phase::report("services", missing.is_empty(), begin.elapsed());
    missing
}

/// Stops what was started here.
pub(crate) fn stop_started() -> Result<(), String> {
    // Held until all is stopped: the main thread and the handler of Ctrl-C may both come here, and the second
    // must not end the process before the first is through.
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    match std::mem::take(&mut *started) {
        services if services.is_empty() => Ok(()),
        services => services::down(&services),
    }
}

fn libraries() -> PathBuf {
    let rustc = Command::new("rustc").args(["--print", "target-libdir"]).stderr(Stdio::null()).output();
    let folder = rustc.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    PathBuf::from(folder.unwrap_or_default())
}
