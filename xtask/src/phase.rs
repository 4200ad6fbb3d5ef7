//! One phase of a run: a command whose output goes to a file, one line on the terminal.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio, exit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// A phase that takes longer than this hangs: several times what the whole run takes.
const PHASE_MINUTES_MAX: u64 = 60;

/// The process groups that run, to be ended on Ctrl-C.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Set once by [`interrupt`]; no phase begins or reports after that.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The target folder of this checkout.
pub(crate) fn target() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).join("target")
}

/// Where the logs of the phases are.
pub(crate) fn logs() -> PathBuf {
    target().join("xtask")
}

/// Ctrl-C and TERM end what runs, then `stop` stops what was started.
pub(crate) fn stop_when_interrupted(stop: impl Fn() + Send + 'static) -> Result<(), String> {
    ctrlc::set_handler(move || {
        eprintln!("\ninterrupted: stopping what was started");
        interrupt();
        stop();
        exit(130);
    })
    .map_err(|error| error.to_string())
}

/// A phase that ended.
#[derive(Debug)]
pub(crate) struct Phase {
    pub(crate) name: String,
    pub(crate) ok: bool,
    pub(crate) log: PathBuf,
    pub(crate) note: String,
}

impl Phase {
    /// What the command said.
    pub(crate) fn output(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

/// Runs a command to its end as the phase `name`, and says how it ended.
pub(crate) fn run(name: &str, command: Command) -> Phase {
    let begin = Instant::now();
    let phase = quietly(name, command);
    report(name, phase.ok, begin.elapsed());
    phase
}

/// Runs a command to its end without a progress line. Several may run at a time.
pub(crate) fn quietly(name: &str, command: Command) -> Phase {
    let log = logs().join(format!("{name}.log"));
    stand_still_if_interrupted();
    let (ok, note) = match execute(command, &log) {
        Ok(()) => (true, String::new()),
        Err(note) => (false, note),
    };
    stand_still_if_interrupted();
    Phase { name: name.to_owned(), ok, log, note }
}

/// The progress line.
pub(crate) fn report(name: &str, ok: bool, took: Duration) {
    let word = if ok { "ok" } else { "FAILED" };
    eprintln!("{name:<16} {word:<7} {:>7.1} s", took.as_secs_f64());
}

fn execute(mut command: Command, log: &Path) -> Result<(), String> {
    let open = || {
        fs::create_dir_all(logs())?;
        File::create(log)
    };
    let file = open().map_err(|error| format!("{}: {error}", log.display()))?;
    let copy = file.try_clone().map_err(|error| error.to_string())?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(copy)
        // Its own group: a Ctrl-C reaches us alone, and we end all of it in order.
        .process_group(0)
        .spawn()
        .map_err(|error| format!("{command:?}: {error}"))?;
    running().push(child.id());
    let until = Instant::now() + Duration::from_secs(PHASE_MINUTES_MAX * 60);
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break Ok(()),
            Ok(Some(status)) => break Err(format!("{status}")),
            Err(error) => break Err(error.to_string()),
            Ok(None) if Instant::now() > until => {
                end_group(child.id());
                let _ = child.wait();
                break Err(format!("it hung and was killed after {PHASE_MINUTES_MAX} minutes"));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    running().retain(|group| *group != child.id());
    ended
}

fn running() -> MutexGuard<'static, Vec<u32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on an interruption ends this process group too.
pub(crate) fn watch(group: u32) {
    running().push(group);
    // It may have come just before, and then it did not see this group.
    if INTERRUPTED.load(Ordering::SeqCst) {
        end_group(group);
    }
}

/// Ends a watched process group, whose leader is our child and not waited for yet.
pub(crate) fn end_watched(group: u32) {
    end_group(group);
    running().retain(|other| *other != group);
}

/// The handler ends the process once everything is stopped. Until then the main thread must not
/// go on to the next phase, nor report as a failure what was interrupted.
pub(crate) fn stand_still_if_interrupted() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::park_timeout(Duration::from_secs(1));
    }
}

/// Ends what runs, with everything it has started, for good.
fn interrupt() {
    INTERRUPTED.store(true, Ordering::SeqCst);
    running().iter().for_each(|group| end_group(*group));
}

fn end_group(group: u32) {
    // The group's leader is our child and not waited for yet, so the number is still its own.
    if let Some(group) = i32::try_from(group).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_is_kept_and_the_status_decides() {
        let good = run("unit-good", sh("echo out; echo err >&2"));
        assert!(good.ok);
        assert_eq!(good.output(), "out\nerr\n");
        let bad = run("unit-bad", sh("echo reason; exit 3"));
        assert!(!bad.ok);
        assert!(bad.note.contains('3'), "{}", bad.note);
        assert_eq!(bad.output(), "reason\n");
        let absent = run("unit-absent", Command::new("/no/such/program"));
        assert!(!absent.ok && absent.note.contains("/no/such/program"));
    }
}
