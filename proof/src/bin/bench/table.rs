//! What was measured, for people and for scripts.

use std::fmt::Write;

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
