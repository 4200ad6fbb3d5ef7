//! Server processes: started apart from us, recognised by pid and start time, stopped for good.
//!
//! A pid alone identifies no process: after a crash or a reboot it may belong to another one, which must never be
//! signalled. The kernel's start time makes the pair unique for one boot.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::stopped::wait_until_stopped;

/// A process by pid and start time (clock ticks since boot), with the boot it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    pub(super) role: String,
    pub(super) pid: u32,
    start_ticks: u64,
    boot: String,
}

impl Process {
    /// Starts a command that outlives us: its own process group, so that a Ctrl-C meant for us
    /// does not reach it, and its output in `log`.
    pub(super) fn spawn(role: &str, mut command: Command, log: &Path) -> io::Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        let mut child =
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0).spawn()?;
        let pid = child.id();
        let found = Self::find(role, pid);
        // While we live we are its parent and have to collect it, or it stays as a zombie.
        std::thread::spawn(move || {
            let _ = child.wait();
        });
        found.ok_or_else(|| io::Error::other(format!("{role} ended at once")))
    }

    fn find(role: &str, pid: u32) -> Option<Self> {
        let stat = Stat::read(pid)?;
        Some(Self { role: role.to_owned(), pid, start_ticks: stat.start_ticks, boot: boot_id() })
    }

    /// Whether this very process still runs. A zombie does not.
    pub(super) fn is_alive(&self) -> bool {
        self.boot == boot_id()
            && Stat::read(self.pid)
                .is_some_and(|stat| stat.start_ticks == self.start_ticks && !matches!(stat.state, 'Z' | 'X'))
    }

    /// Sends a signal to this very process; to one that is gone, nothing is sent.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
        // Opened first, compared second: the descriptor keeps meaning the process it was opened for, so a pid that is
        // reused in between cannot lead to another process being hit.
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
        if !self.is_alive() {
            return Ok(());
        }
        match pidfd_send_signal(pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// This process and everything below it. PostgreSQL's backends and Erlang's ports lead their
    /// own sessions, so a process group would not name them all.
    fn tree(&self) -> Vec<Self> {
        let mut tree = vec![self.clone()];
        let all: Vec<(u32, Stat)> = every_process();
        let mut next = 0;
        while next < tree.len() {
            let parent = tree[next].pid;
            for (pid, stat) in all.iter().filter(|(_, stat)| stat.parent == parent) {
                tree.push(Self {
                    role: self.role.clone(),
                    pid: *pid,
                    start_ticks: stat.start_ticks,
                    boot: self.boot.clone(),
                });
            }
            next += 1;
        }
        tree
    }

    /// SIGSTOP for the whole tree, the root first so that it starts no new process meanwhile. Returns when all of it
    /// stands still.
    pub(super) fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        // Before it stands still it may start one more process.
        wait_until_stopped(self.pid)?;
        let tree = self.tree();
        tree.iter().try_for_each(|process| process.signal(Signal::STOP))?;
        tree.iter().try_for_each(|process| match wait_until_stopped(process.pid) {
            // One of them has ended meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            stopped => stopped,
        })
    }

    /// SIGCONT for the whole tree.
    pub(super) fn resume(&self) -> io::Result<()> {
        self.tree().iter().rev().try_for_each(|process| process.signal(Signal::CONT))
    }

    /// SIGKILL for the whole tree, and waits until all of it is gone.
    pub(super) fn kill(&self) -> io::Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        self.signal(Signal::STOP)?;
        let tree = self.tree();
        tree.iter().try_for_each(|process| process.signal(Signal::KILL))?;
        wait_gone(&tree, Duration::from_secs(10))
            .then_some(())
            .ok_or_else(|| io::Error::other(format!("{} survives SIGKILL", self.role)))
    }

    /// Asks the process to end, insists after `patience`, and leaves nothing of its tree behind.
    pub(super) fn stop(&self, ask: Signal, patience: Duration) -> io::Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        let tree = self.tree();
        // A paused process would not react.
        self.resume()?;
        self.signal(ask)?;
        if !wait_gone(std::slice::from_ref(self), patience) {
            return self.kill();
        }
        if !wait_gone(&tree, Duration::from_secs(2)) {
            tree.iter().try_for_each(|process| process.signal(Signal::KILL))?;
            wait_gone(&tree, Duration::from_secs(5));
        }
        Ok(())
    }
}

fn wait_gone(processes: &[Process], at_most: Duration) -> bool {
    wait_until(at_most, || !processes.iter().any(Process::is_alive))
}

/// Asks every few milliseconds until the answer is yes or the time is over.
pub(super) fn wait_until(at_most: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + at_most;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process accepts connections on this loopback port.
pub(super) fn is_listening(port: u16) -> bool {
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    TcpStream::connect_timeout(&addr, Duration::from_secs(1)).is_ok()
}

struct Stat {
    state: char,
    parent: u32,
    start_ticks: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The name, second field, is in parentheses and may itself contain any of `) (`.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line[line.rfind(')')? + 1..].split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        // Field 22 of proc(5); the state is field 3 and the parent field 4.
        let start_ticks = fields.nth(17)?.parse().ok()?;
        Some(Self { state, parent, start_ticks })
    }
}

fn every_process() -> Vec<(u32, Stat)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, Stat::read(pid)?)))
        .collect()
}

/// The processes whose working directory is this one. A zombie has none.
pub(super) fn working_in(dir: &Path) -> Vec<u32> {
    let Ok(dir) = dir.canonicalize() else { return Vec::new() };
    let works_there = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == dir);
    every_process().into_iter().map(|(pid, _)| pid).filter(works_there).collect()
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// The last lines of a log, for an error message.
pub(super) fn tail(path: &Path, lines: usize) -> String {
    const BYTES_MAX: u64 = 64 * 1024;
    let read = || -> io::Result<String> {
        use std::io::{Read, Seek, SeekFrom};
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(BYTES_MAX)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let line = "42 (a) (b c)) S 7 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2 3";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.state, stat.parent, stat.start_ticks), ('S', 7, 98765));
        assert!(Stat::parse("").is_none());
        assert!(Stat::parse("42 (x) S 7").is_none());
    }

    fn sleeper(dir: &Path) -> Process {
        // A shell with a child of its own: a small tree.
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 300 & wait"]);
        let process = Process::spawn("sleeper", command, &dir.join("log")).unwrap();
        assert!(wait_until(Duration::from_secs(10), || process.tree().len() == 2));
        process
    }

    #[test]
    fn a_reused_pid_is_not_taken_for_the_old_process() {
        let dir = tempfile::tempdir().unwrap();
        let process = sleeper(dir.path());
        assert!(process.is_alive());
        let stranger = Process { start_ticks: process.start_ticks + 1, ..process.clone() };
        let yesterday = Process { boot: "another boot".to_owned(), ..process.clone() };
        for other in [stranger, yesterday] {
            assert!(!other.is_alive());
            other.signal(Signal::KILL).unwrap();
            other.kill().unwrap();
        }
        assert!(process.is_alive(), "a process was hit that only shares the pid");
        process.kill().unwrap();
        assert!(!process.is_alive());
    }

    #[test]
    fn who_works_in_a_directory_is_found_until_it_is_dead() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(working_in(dir.path()), [] as [u32; 0]);
        let mut command = Command::new("sleep");
        command.arg("300").current_dir(dir.path());
        let process = Process::spawn("sleeper", command, &dir.path().join("log")).unwrap();
        assert_eq!(working_in(dir.path()), [process.pid]);
        process.kill().unwrap();
        assert_eq!(working_in(dir.path()), [] as [u32; 0]);
    }

    #[test]
    fn killing_and_stopping_take_the_children_along() {
        let dir = tempfile::tempdir().unwrap();
        for end in [|p: &Process| p.kill(), |p: &Process| p.stop(Signal::TERM, Duration::from_secs(5))] {
            let process = sleeper(dir.path());
            let tree = process.tree();
            end(&process).unwrap();
            assert!(tree.iter().all(|process| !process.is_alive()));
        }
    }

    #[test]
    fn a_paused_tree_can_be_resumed_and_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let process = sleeper(dir.path());
        let states = || -> String {
            process.tree().iter().filter_map(|p| Stat::read(p.pid)).map(|stat| stat.state).collect()
        };
        process.pause().unwrap();
        assert!(wait_until(Duration::from_secs(5), || states() == "TT"));
        process.resume().unwrap();
        assert!(wait_until(Duration::from_secs(5), || states() == "SS"));
        process.pause().unwrap();
        process.stop(Signal::TERM, Duration::from_secs(5)).unwrap();
        assert!(!process.is_alive());
    }
}
