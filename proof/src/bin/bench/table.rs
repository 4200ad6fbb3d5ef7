//! What was measured, for people and for scripts.

use std::fmt::Write;
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<(String, f64, &'static str, String)>,
}

impl Table {
    pub(crate) fn row(&mut self, name: &str, value: f64, unit: &'static str, note: impl Into<String>) {
        self.rows.push((name.to_owned(), value, unit, note.into()));
    }

    pub(crate) fn text(&self) -> String {
        let width = self.rows.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
        let mut out = String::new();
        for (name, value, unit, note) in &self.rows {
            let gap = " ".repeat(width - name.chars().count());
            let _ = writeln!(out, "{name}{gap}  {:>12} {unit:<9} {note}", shown(*value));
        }
        out
    }

    pub(crate) fn json(&self) -> String {
        let mut out = String::new();
        for (name, value, unit, note) in &self.rows {
            let _ = writeln!(
                out,
                "{{\"name\":{name:?},\"value\":{value:.3},\"unit\":{unit:?},\"note\":{note:?}}}"
            );
        }
        out
    }
}

fn shown(value: f64) -> String {
    if value >= 1_000.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// Times of single calls.
#[derive(Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The time that `share` of all calls stayed below, in µs.
    pub(crate) fn percentile_us(&mut self, share: f64) -> f64 {
        self.0.sort_unstable();
        let at = ((self.0.len() as f64 * share) as usize).min(self.0.len().saturating_sub(1));
        self.0.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    }
}
