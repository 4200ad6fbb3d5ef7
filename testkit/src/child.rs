//! A child process that can be stopped at a named crash point and killed there.
//!
//! The protocol is two lines. A child started with `SEMEL_CRASH_AT=<name>` (or `<name>:<n>` for
//! the n-th time) writes `semel-crash-point <name>` to stderr when it gets there and then reads
//! one line from stdin; the line `go` lets it continue. Between the two the test knows exactly
//! where the child stands, so a SIGKILL is aimed and not a matter of timing.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::stopped::wait_until_stopped;

/// The environment variable that names the point to stop at.
pub const CRASH_AT_ENV: &str = "SEMEL_CRASH_AT";

/// What a child writes to stderr, followed by the name, when it has arrived.
pub const CRASH_POINT_LINE: &str = "semel-crash-point ";

/// Lines kept of each of a child's two outputs; older ones are dropped.
pub const LINES_MAX: usize = 10_000;

/// How long the pipes of a child that has ended are still read, where another process holds them open.
const PIPES_MAX: Duration = Duration::from_secs(30);

/// A child process under the control of a test. Killed when dropped.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    stdout: Arc<Output>,
    stderr: Arc<Output>,
    /// Lines of stdout already handed out by `next_line`, and of stderr by `wait_for_point` and `wait_for_said`.
    stdout_read: usize,
    stderr_read: usize,
}

/// How a child ended and what it said.
#[derive(Debug)]
pub struct Finished {
    /// The exit status; a killed child has a signal instead of a code.
    pub status: ExitStatus,
    /// The lines of stdout.
    pub stdout: Vec<String>,
    /// The lines of stderr.
    pub stderr: Vec<String>,
}

impl Child {
    /// Starts the command, asking it to stop at `crash_at` if that is given.
    pub fn spawn(mut command: Command, crash_at: Option<&str>) -> io::Result<Self> {
        // A point inherited from the test's own environment would stop the child by surprise.
        command.env_remove(CRASH_AT_ENV);
        if let Some(point) = crash_at {
            command.env(CRASH_AT_ENV, point);
        }
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdout = Output::follow(process.stdout.take());
        let stderr = Output::follow(process.stderr.take());
        let stdin = process.stdin.take();
        Ok(Self { process, stdin, stdout, stderr, stdout_read: 0, stderr_read: 0 })
    }

    /// The child's process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the child stands at its crash point and returns the point's name.
    ///
    /// Fails with `TimedOut`, or with `UnexpectedEof` when the child ended without arriving: a
    /// test whose crash point is never reached proves nothing and must not pass.
    pub fn wait_for_point(&mut self, timeout: Duration) -> io::Result<String> {
        let until = Instant::now() + timeout;
        loop {
            let line = self.stderr.next(&mut self.stderr_read, until).map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("no crash point reached; stderr: {:?}", self.stderr.all()),
                )
            })?;
            if let Some(name) = line.strip_prefix(CRASH_POINT_LINE) {
                return Ok(name.trim_end().to_owned());
            }
        }
    }

    /// The next line the child writes to stdout: its signal to the test.
    pub fn next_line(&mut self, timeout: Duration) -> io::Result<String> {
        self.stdout.next(&mut self.stdout_read, Instant::now() + timeout)
    }

    /// Waits for a line of stderr that contains `text`, among those not waited for yet, and returns it.
    pub fn wait_for_said(&mut self, text: &str, timeout: Duration) -> io::Result<String> {
        let until = Instant::now() + timeout;
        loop {
            let line = self.stderr.next(&mut self.stderr_read, until).map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("{text:?} was not written; stderr: {:?}", self.stderr.all()),
                )
            })?;
            if line.contains(text) {
                return Ok(line);
            }
        }
    }

    /// Lets a child that stands at its crash point continue.
    pub fn go(&mut self) -> io::Result<()> {
        self.send("go")
    }

    /// Writes one line to the child's stdin.
    pub fn send(&mut self, line: &str) -> io::Result<()> {
        let stdin = self.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        stdin.write_all(format!("{line}\n").as_bytes())?;
        stdin.flush()
    }

    /// SIGKILL, and wait until the child is gone: after this it can write nothing any more.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        // Added up by `cargo xtask prove`.
        println!("figures: 1 kills");
        self.process.kill()?;
        self.process.wait()
    }

    /// SIGSTOP: the child stands still with its connections and leases, like a long GC pause. Returns when it does.
    pub fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        wait_until_stopped(self.id())
    }

    /// SIGCONT after [`pause`](Self::pause).
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// SIGTERM: asks the child to end in good order.
    pub fn terminate(&self) -> io::Result<()> {
        self.signal(Signal::TERM)
    }

    /// Closes stdin and waits until the child has ended, at most `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Finished> {
        self.stdin = None;
        let until = Instant::now() + timeout;
        let status = loop {
            if let Some(status) = self.process.try_wait()? {
                break status;
            }
            if Instant::now() >= until {
                let stderr = self.stderr.all();
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("the child still runs after {timeout:?}; stderr: {stderr:?}"),
                ));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        // A grandchild may hold the pipes open; what the child itself wrote is read by then.
        let grace = Instant::now() + PIPES_MAX;
        self.stdout.wait_closed(grace);
        self.stderr.wait_closed(grace);
        Ok(Finished { status, stdout: self.stdout.all(), stderr: self.stderr.all() })
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        // Our own child that we have not waited for: its pid cannot have been given away.
        kill_process(Pid::from_child(&self.process), signal).map_err(io::Error::from)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail when the child is gone already, which is what is wanted.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[derive(Debug, Default)]
struct Output {
    state: Mutex<OutputState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct OutputState {
    lines: VecDeque<String>,
    dropped: usize,
    closed: bool,
}

impl Output {
    fn follow(pipe: Option<impl Read + Send + 'static>) -> Arc<Self> {
        let output = Arc::new(Self::default());
        let writer = Arc::clone(&output);
        // Read all the time: a child must never block because its output is not read.
        std::thread::spawn(move || {
            let mut reader = pipe.map(BufReader::new);
            let mut line = Vec::new();
            while let Some(reader) = reader.as_mut() {
                line.clear();
                match reader.read_until(b'\n', &mut line) {
                    Ok(0) | Err(_) => break,
                    Ok(_) => writer.push(String::from_utf8_lossy(&line).trim_end().to_owned()),
                }
            }
            writer.lock().closed = true;
            writer.changed.notify_all();
        });
        output
    }

    fn lock(&self) -> MutexGuard<'_, OutputState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: String) {
        let mut state = self.lock();
        if state.lines.len() == LINES_MAX {
            state.lines.pop_front();
            state.dropped += 1;
        }
        state.lines.push_back(line);
        self.changed.notify_all();
    }

    fn next(&self, read: &mut usize, until: Instant) -> io::Result<String> {
        let mut state = self.lock();
        loop {
            let index = read.saturating_sub(state.dropped);
            if let Some(line) = state.lines.get(index) {
                *read = state.dropped + index + 1;
                return Ok(line.clone());
            }
            if state.closed {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn wait_closed(&self, until: Instant) {
        let mut read = usize::MAX / 2;
        let _ = self.next(&mut read, until);
    }

    fn all(&self) -> Vec<String> {
        self.lock().lines.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script);
        command
    }

    const POINT: &str = r#"
        echo before
        if [ -n "$SEMEL_CRASH_AT" ]; then
            echo "noise" >&2
            echo "semel-crash-point $SEMEL_CRASH_AT" >&2
            read answer
            [ "$answer" = go ] || exit 9
        fi
        echo after
    "#;

    #[test]
    fn killed_at_the_point_it_never_gets_past_it() {
        let mut child = Child::spawn(sh(POINT), Some("after-claim")).unwrap();
        assert_eq!(child.wait_for_point(SOON).unwrap(), "after-claim");
        assert_eq!(child.kill().unwrap().signal(), Some(9));
        assert_eq!(child.wait(SOON).unwrap().stdout, ["before"]);
    }

    #[test]
    fn let_go_it_continues() {
        let mut child = Child::spawn(sh(POINT), Some("after-claim:2")).unwrap();
        assert_eq!(child.next_line(SOON).unwrap(), "before");
        assert_eq!(child.wait_for_point(SOON).unwrap(), "after-claim:2");
        child.go().unwrap();
        assert_eq!(child.next_line(SOON).unwrap(), "after");
        let end = child.wait(SOON).unwrap();
        assert!(end.status.success());
        assert_eq!(end.stdout, ["before", "after"]);
        assert_eq!(end.stderr, ["noise", "semel-crash-point after-claim:2"]);
    }

    #[test]
    fn a_point_never_reached_is_an_error() {
        let mut child = Child::spawn(sh(POINT), None).unwrap();
        let error = child.wait_for_point(SOON).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let mut child = Child::spawn(sh("read never"), None).unwrap();
        let error = child.wait_for_point(Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn paused_it_stands_still_and_resumed_it_answers() {
        let mut child = Child::spawn(sh("echo up; read a; echo $a; read b"), None).unwrap();
        assert_eq!(child.next_line(SOON).unwrap(), "up");
        child.pause().unwrap();
        child.send("pong").unwrap();
        let error = child.next_line(Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        child.resume().unwrap();
        assert_eq!(child.next_line(SOON).unwrap(), "pong");
        child.terminate().unwrap();
        assert_eq!(child.wait(SOON).unwrap().status.signal(), Some(15));
    }

    #[test]
    fn a_dropped_child_is_dead() {
        let child = Child::spawn(sh("read never"), None).unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        assert!(std::path::Path::new(&stat).exists());
        drop(child);
        assert!(!std::path::Path::new(&stat).exists());
    }
}
