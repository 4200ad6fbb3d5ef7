//! A process of a peer: started in a group of its own, asked by lines, ended with its value.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::child::Child;
use testkit::services::spare_port;

use crate::phase;

/// How long a process may take until it serves.
pub(super) const START: Duration = Duration::from_secs(90);
/// How long an answer to a short question may take.
const ANSWER: Duration = Duration::from_secs(30);
/// What is shown of a process that fails.
const LAST_LINES: usize = 8;

/// Free addresses on loopback, no two of them the same.
pub(super) fn addresses<const N: usize>() -> [SocketAddr; N] {
    let mut ports = BTreeSet::new();
    while ports.len() < N {
        ports.insert(spare_port());
    }
    let mut ports = ports.into_iter();
    [(); N].map(|()| SocketAddr::from(([127, 0, 0, 1], ports.next().unwrap_or_default())))
}

/// A process that runs. It ends with everything it has started when this is dropped, or when the run is interrupted.
#[derive(Debug)]
pub(super) struct Part {
    name: &'static str,
    child: Child,
    ended: bool,
}

impl Part {
    pub(super) fn start(name: &'static str, mut command: Command) -> Result<Self, String> {
        command.process_group(0);
        let child = Child::spawn(command, None).map_err(|error| format!("{name}: {error}"))?;
        phase::watch(child.id());
        Ok(Self { name, child, ended: false })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it writes `word` at the beginning of a line, and returns the rest of that line.
    pub(super) fn wait_for(&mut self, word: &str, at_most: Duration) -> Result<String, String> {
        let until = Instant::now() + at_most;
        loop {
            match self.child.next_line(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    // A library may write lines of its own.
                    if let Some(rest) = line.strip_prefix(word) {
                        return Ok(rest.trim().to_owned());
                    }
                }
                Err(error) => {
                    let why = match error.kind() {
                        io::ErrorKind::TimedOut => {
                            format!("did not write `{word}` within {} s", at_most.as_secs())
                        }
                        _ => format!("ended before it wrote `{word}`"),
                    };
                    return Err(self.failed(&why));
                }
            }
        }
    }

    /// Writes a line, waits for the answer that begins with `word`, and returns its number.
    pub(super) fn ask(&mut self, line: &str, word: &str, work: Duration) -> Result<u64, String> {
        if let Err(error) = self.child.send(line) {
            return Err(self.failed(&format!("does not read its input: {error}")));
        }
        let answer = self.wait_for(word, work + ANSWER)?;
        answer.parse().map_err(|_| self.failed(&format!("answered `{line}` with `{word} {answer}`")))
    }

    /// Ends it, and says why with the last lines that it wrote.
    pub(super) fn failed(&mut self, why: &str) -> String {
        self.end();
        let last = |lines: &[String]| lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
        let said = self.child.wait(ANSWER).map(|end| format!("{}\n{}", last(&end.stdout), last(&end.stderr)));
        format!("{} {why}\n{}", self.name, said.unwrap_or_default().trim())
    }

    fn end(&mut self) {
        if !self.ended {
            self.ended = true;
            phase::end_watched(self.child.id());
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // The child itself is waited for when it is dropped, after this.
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Part {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Part::start("the shell", command).unwrap()
    }

    #[test]
    fn addresses_differ() {
        let different: BTreeSet<u16> = addresses::<100>().iter().map(SocketAddr::port).collect();
        assert_eq!(different.len(), 100);
    }

    #[test]
    fn it_is_asked_by_lines_among_lines_of_others() {
        let mut part =
            shell("echo a log line; echo ready; while read word; do echo noise; echo steps 7; done");
        part.wait_for("ready", SOON).unwrap();
        assert_eq!(part.ask("steps", "steps", Duration::ZERO), Ok(7));
    }

    #[test]
    fn one_that_fails_says_what_it_wrote_last() {
        let mut part = shell("echo no such database >&2; exit 3");
        let error = part.wait_for("ready", SOON).unwrap_err();
        assert_eq!(error, "the shell ended before it wrote `ready`\nno such database");
        let mut part = shell("read word; echo steps many; read more");
        let error = part.ask("steps", "steps", Duration::ZERO).unwrap_err();
        assert!(error.starts_with("the shell answered `steps` with `steps many`"), "{error}");
    }

    #[test]
    fn what_it_has_started_ends_with_it() {
        let mut part = shell("sleep 300 & echo child $!; wait");
        let child = part.wait_for("child", SOON).unwrap();
        drop(part);
        // Killed at once, and collected soon by the process that inherits it.
        let until = Instant::now() + SOON;
        let stat = || std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        while !(stat().is_empty() || stat().contains(") Z ")) {
            assert!(Instant::now() < until, "it still runs");
            std::thread::yield_now();
        }
    }
}
