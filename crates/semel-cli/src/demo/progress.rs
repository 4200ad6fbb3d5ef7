//! Progress on stderr: a bar for a terminal, a line per phase otherwise.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crate::table::thousands;

const WIDTH: u64 = 30;
const REDRAW: Duration = Duration::from_millis(50);

pub(super) struct Progress {
    live: bool,
    what: String,
    done: u64,
    of: u64,
    drawn: Option<Instant>,
}

impl Progress {
    pub(super) fn new() -> Self {
        let live = std::io::stderr().is_terminal();
        Self { live, what: String::new(), done: 0, of: 0, drawn: None }
    }

    /// Starts a phase of so many steps; zero for one that cannot be counted.
    pub(super) fn phase(&mut self, what: impl Into<String>, of: usize) {
        self.end();
        (self.what, self.done, self.of) = (what.into(), 0, of as u64);
        if self.live { self.draw() } else { eprintln!("{}", self.what) }
    }

    pub(super) fn step(&mut self) {
        self.done += 1;
        let due = self.drawn.is_none_or(|drawn| drawn.elapsed() >= REDRAW);
        if self.live && (due || self.done == self.of) {
            self.draw();
        }
    }

    fn draw(&mut self) {
        self.drawn = Some(Instant::now());
        if self.of == 0 {
            eprint!("\r\x1b[K{}", self.what);
            return;
        }
        let full = (self.done * WIDTH / self.of).min(WIDTH) as usize;
        let bar = format!("{}{}", "#".repeat(full), ".".repeat(WIDTH as usize - full));
        eprint!("\r\x1b[K[{bar}] {}/{} {}", thousands(self.done), thousands(self.of), self.what);
    }

    /// Clears the bar from the terminal.
    pub(super) fn end(&mut self) {
        if self.live && self.drawn.take().is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
