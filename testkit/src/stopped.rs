//! Waits until a process that got SIGSTOP stands still.
//!
//! The signal returns before the threads on other cores have stopped: one of them may still send an answer or write a
//! record that the test takes for impossible.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// A thread in a disk write stops when that is over.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);

pub(crate) fn wait_until_stopped(pid: u32) -> io::Result<()> {
    let until = Instant::now() + STOPPED_WITHIN;
    // Twice: a thread that was born while the threads were listed may be missing in the list.
    while !(is_stopped(pid)? && is_stopped(pid)?) {
        if Instant::now() >= until {
            let message = format!("process {pid} got SIGSTOP and still runs after {STOPPED_WITHIN:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Whether every thread is stopped, or has ended.
fn is_stopped(pid: u32) -> io::Result<bool> {
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread that ended meanwhile has no file any more.
        let Ok(stat) = fs::read_to_string(thread?.path().join("stat")) else { continue };
        if !matches!(state(&stat), Some('T' | 't' | 'Z' | 'X')) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The state stands behind the name, which may contain anything.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_stands_behind_the_name() {
        assert_eq!(state("12 (sh) T 1 12"), Some('T'));
        assert_eq!(state("12 (a) R) S 1 12"), Some('S'));
        assert_eq!(state(""), None);
    }

    #[test]
    fn a_process_that_runs_is_not_stopped() {
        assert!(!is_stopped(std::process::id()).unwrap());
        assert!(is_stopped(u32::MAX).is_err());
    }
}
