//! What a world is given while it plays.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// A trace longer than this keeps its hash and forgets the lines.
const TRACE_LINES_MAX: usize = 20_000;

/// Where virtual time begins on the wall: any fixed moment does.
const WALL_BEGINS: Duration = Duration::from_secs(1_700_000_000);

/// Counts of what happened, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures(pub BTreeMap<&'static str, u64>);

impl Figures {
    /// Adds another history's figures.
    pub fn add(&mut self, other: &Self) {
        for (name, count) in &other.0 {
            *self.0.entry(name).or_default() += count;
        }
    }

    /// How often `name` happened.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (name, count) in &self.0 {
            write!(f, "{}{count} {name}", if first { "" } else { ", " })?;
            first = false;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Written {
    hasher: DefaultHasher,
    lines: Vec<String>,
    figures: Figures,
}

/// Virtual time, the trace, the figures and the planted bug of one history. Clones share them.
#[derive(Clone)]
pub struct Stage {
    begin: Instant,
    planted: Option<&'static str>,
    written: Arc<Mutex<Written>>,
}

impl Stage {
    /// Only inside a runtime whose clock is paused: see [`play`](crate::play::play).
    pub(crate) fn new(planted: Option<&'static str>) -> Self {
        Self { begin: Instant::now(), planted, written: Arc::default() }
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Virtual time since the history began.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// The wall clock of a process whose clock is right.
    pub fn wall(&self) -> SystemTime {
        UNIX_EPOCH + WALL_BEGINS + self.elapsed()
    }

    /// Whether this bug is planted.
    pub fn has(&self, bug: &str) -> bool {
        self.planted == Some(bug)
    }

    /// Writes a step down. Random bytes (owners, ids) do not belong in it: the same seed must give the same trace.
    pub fn trace(&self, what: impl fmt::Display) {
        let line = format!("{:>10.3} s  {what}", self.elapsed().as_secs_f64());
        let mut written = self.written();
        line.hash(&mut written.hasher);
        if written.lines.len() < TRACE_LINES_MAX {
            written.lines.push(line);
        }
    }

    /// Counts something.
    pub fn count(&self, name: &'static str, by: u64) {
        *self.written().figures.0.entry(name).or_default() += by;
    }

    pub(crate) fn end(&self) -> (Figures, u64, Vec<String>) {
        let mut written = self.written();
        let figures = written.figures.clone();
        for (name, count) in &figures.0 {
            (name, count).hash(&mut written.hasher);
        }
        (figures, written.hasher.finish(), std::mem::take(&mut written.lines))
    }
}
