//! What was measured, and how it is shown.

use std::fmt::Write as _;
use std::time::Duration;

/// One row: a peer in one set-up.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    pub(crate) peer: String,
    pub(crate) version: String,
    pub(crate) database: String,
    /// Sagas that ended well while it was measured.
    pub(crate) sagas: u64,
    pub(crate) time: Duration,
    /// Of all processes of the peer, with its database.
    pub(crate) cpu_seconds: f64,
}

impl Figures {
    pub(crate) fn sagas_per_second(&self) -> f64 {
        ratio(self.sagas as f64, self.time.as_secs_f64())
    }

    pub(crate) fn cpu_ms_per_saga(&self) -> f64 {
        ratio(self.cpu_seconds * 1_000.0, self.sagas as f64)
    }

    pub(crate) fn sagas_per_cpu_second(&self) -> f64 {
        ratio(self.sagas as f64, self.cpu_seconds)
    }

    fn cells(&self) -> [String; 6] {
        [
            self.peer.clone(),
            self.version.clone(),
            self.database.clone(),
            shown(self.sagas_per_second()),
            shown(self.cpu_ms_per_saga()),
            shown(self.sagas_per_cpu_second()),
        ]
    }

    /// One JSON object on one line.
    pub(crate) fn json(&self) -> String {
        let rounded = |value: f64| (value * 1_000.0).round() / 1_000.0;
        serde_json::json!({
            "peer": self.peer,
            "version": self.version,
            "database": self.database,
            "sagas": self.sagas,
            "seconds": rounded(self.time.as_secs_f64()),
            "cpu_seconds": rounded(self.cpu_seconds),
            "sagas_per_second": rounded(self.sagas_per_second()),
            "cpu_ms_per_saga": rounded(self.cpu_ms_per_saga()),
            "sagas_per_cpu_second": rounded(self.sagas_per_cpu_second()),
        })
        .to_string()
    }
}

/// Without a divisor there is nothing to compare: 0 and not infinity, which JSON does not have.
fn ratio(value: f64, by: f64) -> f64 {
    if by > 0.0 { value / by } else { 0.0 }
}

fn shown(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

const HEAD: [&str; 6] = ["peer", "version", "database", "sagas/s", "CPU ms per saga", "sagas per CPU second"];

/// The table for people: names to the left, numbers to the right.
pub(crate) fn table(rows: &[Figures]) -> String {
    let mut lines = vec![HEAD.map(str::to_owned)];
    lines.extend(rows.iter().map(Figures::cells));
    let length = |text: &String| text.chars().count();
    let widths: Vec<usize> =
        (0..HEAD.len()).map(|at| lines.iter().map(|line| length(&line[at])).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for line in &lines {
        for (at, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let _ = match at {
                0 => write!(out, "{cell:<width$}"),
                1 | 2 => write!(out, "  {cell:<width$}"),
                _ => write!(out, "  {cell:>width$}"),
            };
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(sagas: u64, cpu_seconds: f64) -> Figures {
        Figures {
            peer: "Peer".to_owned(),
            version: "1.2.3".to_owned(),
            database: "PostgreSQL 15".to_owned(),
            sagas,
            time: Duration::from_secs(20),
            cpu_seconds,
        }
    }

    #[test]
    fn ratios_are_of_what_was_counted() {
        let row = row(8_000, 16.0);
        assert_eq!(row.sagas_per_second(), 400.0);
        assert_eq!(row.cpu_ms_per_saga(), 2.0);
        assert_eq!(row.sagas_per_cpu_second(), 500.0);
    }

    #[test]
    fn nothing_measured_is_nothing_and_still_json() {
        let row = row(0, 0.0);
        assert_eq!((row.cpu_ms_per_saga(), row.sagas_per_cpu_second()), (0.0, 0.0));
        let json: serde_json::Value = serde_json::from_str(&row.json()).unwrap();
        assert_eq!(json["sagas_per_cpu_second"], 0.0);
    }

    #[test]
    fn one_json_object_a_line() {
        let json = row(8_000, 16.0).json();
        assert!(!json.contains('\n'));
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["peer"], &json["sagas"]), (&"Peer".into(), &8_000.into()));
        assert_eq!((&json["sagas_per_second"], &json["cpu_ms_per_saga"]), (&400.0.into(), &2.0.into()));
    }

    #[test]
    fn the_columns_of_the_table_are_aligned() {
        let text = table(&[row(8_000, 16.0), row(80, 16.0)]);
        assert_eq!(
            text,
            "peer  version  database       sagas/s  CPU ms per saga  sagas per CPU second\n\
             Peer  1.2.3    PostgreSQL 15      400             2.00                   500\n\
             Peer  1.2.3    PostgreSQL 15     4.00              200                  5.00\n"
        );
    }
}
