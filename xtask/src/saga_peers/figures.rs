//! What was measured, and how it is shown.

use std::fmt::Write as _;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, json};

/// What a saga of semel costs on one database, measured by `cargo xtask bench saga`: `NAME=MILLISECONDS`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Semel {
    pub(crate) name: String,
    pub(crate) cpu_ms_per_saga: f64,
}

impl FromStr for Semel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
        let ms = parts.and_then(|(name, ms)| Some((name, ms.parse::<f64>().ok()?)));
        match ms.filter(|(_, ms)| ms.is_finite() && *ms > 0.0) {
            Some((name, cpu_ms_per_saga)) => Ok(Self { name: name.to_owned(), cpu_ms_per_saga }),
            None => Err(format!("`{text}` is not NAME=MILLISECONDS, such as SQLite=0.25")),
        }
    }
}

/// One row: a peer in one set-up.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    pub(crate) peer: String,
    pub(crate) version: String,
    pub(crate) database: String,
    /// At a time.
    pub(crate) callers: u64,
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

    /// How many sagas of semel the processors do for one of the peer.
    fn semel_times(&self, semel: &Semel) -> f64 {
        ratio(self.cpu_ms_per_saga(), semel.cpu_ms_per_saga)
    }

    fn cells(&self, semel: &[Semel]) -> Vec<String> {
        let mut cells = vec![
            self.peer.clone(),
            self.version.clone(),
            self.database.clone(),
            self.callers.to_string(),
            shown(self.sagas_per_second()),
            shown(self.cpu_ms_per_saga()),
            shown(self.sagas_per_cpu_second()),
        ];
        cells.extend(semel.iter().map(|semel| format!("{:.1} ×", self.semel_times(semel))));
        cells
    }

    /// One JSON object on one line.
    pub(crate) fn json(&self, semel: &[Semel]) -> String {
        let rounded = |value: f64| (value * 1_000.0).round() / 1_000.0;
        let times = |semel: &Semel| (semel.name.clone(), json!(rounded(self.semel_times(semel))));
        json!({
            "peer": self.peer,
            "version": self.version,
            "database": self.database,
            "callers": self.callers,
            "sagas": self.sagas,
            "seconds": rounded(self.time.as_secs_f64()),
            "cpu_seconds": rounded(self.cpu_seconds),
            "sagas_per_second": rounded(self.sagas_per_second()),
            "cpu_ms_per_saga": rounded(self.cpu_ms_per_saga()),
            "sagas_per_cpu_second": rounded(self.sagas_per_cpu_second()),
            "semel_times": semel.iter().map(times).collect::<Map<_, _>>(),
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

const HEAD: [&str; 7] =
    ["peer", "version", "database", "callers", "sagas/s", "CPU ms per saga", "sagas per CPU second"];

/// The table for people: names to the left, numbers to the right. The last columns are ratios of sagas per CPU second.
pub(crate) fn table(rows: &[Figures], semel: &[Semel]) -> String {
    let mut lines = vec![HEAD.map(str::to_owned).to_vec()];
    lines[0].extend(semel.iter().map(|semel| format!("semel, {}", semel.name)));
    lines.extend(rows.iter().map(|row| row.cells(semel)));
    let length = |text: &String| text.chars().count();
    let widths: Vec<usize> =
        (0..lines[0].len()).map(|at| lines.iter().map(|line| length(&line[at])).max().unwrap_or(0)).collect();
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
            callers: 64,
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
        let json: serde_json::Value = serde_json::from_str(&row.json(&[])).unwrap();
        assert_eq!(json["sagas_per_cpu_second"], 0.0);
    }

    #[test]
    fn one_json_object_a_line() {
        let json = row(8_000, 16.0).json(&semel());
        assert!(!json.contains('\n'));
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["peer"], &json["sagas"]), (&"Peer".into(), &8_000.into()));
        assert_eq!(json["semel_times"], json!({"SQLite": 10.0, "PostgreSQL": 5.0}));
        assert_eq!((&json["sagas_per_second"], &json["cpu_ms_per_saga"]), (&400.0.into(), &2.0.into()));
    }

    fn semel() -> Vec<Semel> {
        ["SQLite=0.2", "PostgreSQL=0.4"].map(|text| text.parse().unwrap()).to_vec()
    }

    #[test]
    fn a_cost_of_semel_is_a_name_and_a_number() {
        assert_eq!(semel()[0], Semel { name: "SQLite".to_owned(), cpu_ms_per_saga: 0.2 });
        for wrong in ["SQLite", "SQLite=", "=0.2", "SQLite=fast", "SQLite=0", "SQLite=-1", "SQLite=inf"] {
            let error = wrong.parse::<Semel>().unwrap_err();
            assert_eq!(error, format!("`{wrong}` is not NAME=MILLISECONDS, such as SQLite=0.25"));
        }
    }

    #[test]
    fn the_columns_of_the_table_are_aligned() {
        assert_eq!(
            table(&[row(8_000, 16.0), row(80, 16.0)], &[]),
            "peer  version  database       callers  sagas/s  CPU ms per saga  sagas per CPU second\n\
             Peer  1.2.3    PostgreSQL 15       64      400             2.00                   500\n\
             Peer  1.2.3    PostgreSQL 15       64     4.00              200                  5.00\n"
        );
        assert_eq!(
            table(&[row(8_000, 16.0)], &semel()[1..]),
            "peer  version  database       callers  sagas/s  CPU ms per saga  sagas per CPU second  semel, PostgreSQL\n\
             Peer  1.2.3    PostgreSQL 15       64      400             2.00                   500              5.0 ×\n"
        );
    }
}
