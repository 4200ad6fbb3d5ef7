//! What a saga of semel costs, from what `bench saga --json` printed.

use std::collections::BTreeMap;

use serde_json::Value;

use super::figures::Semel;

/// The load that is like that of the peers: three steps that call somebody else.
const LOAD: &str = "keyed, keyed, pivot";
/// The rows that count: of the process, and of the database server where there is one.
const COSTS: [&str; 2] = [": processor time of a saga", ": the server's processor time of a saga"];

/// By database, the server's part included.
pub(super) fn costs(lines: &str) -> Vec<Semel> {
    let mut costs: BTreeMap<String, f64> = BTreeMap::new();
    for row in rows(lines) {
        let (Some(name), Some(ms)) = (row["name"].as_str(), row["value"].as_f64()) else { continue };
        let Some((database, what)) = name.split_once(": ") else { continue };
        if what.contains(LOAD) && COSTS.iter().any(|cost| name.ends_with(cost)) {
            *costs.entry(database.to_owned()).or_default() += ms;
        }
    }
    costs.into_iter().map(|(name, cpu_ms_per_saga)| Semel { name, cpu_ms_per_saga }).collect()
}

/// The same rows for people.
pub(super) fn text(lines: &str) -> String {
    let shown = |row: Value| {
        let word = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        let value = row["value"].as_f64().unwrap_or_default();
        format!("{}: {value:.3} {} {}\n", word("name"), word("unit"), word("note"))
    };
    rows(lines).map(shown).collect()
}

fn rows(lines: &str) -> impl Iterator<Item = Value> {
    lines.lines().filter_map(|line| serde_json::from_str(line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"{"name":"SQLite: three-step sagas, keyed, keyed, pivot, 256 callers","value":9000,"unit":"/s","note":""}
{"name":"SQLite: three-step sagas, keyed, keyed, pivot, 256 callers: processor time of a saga","value":0.08,"unit":"ms","note":"of this process"}
{"name":"SQLite: three-step sagas, atomic steps, 256 callers: processor time of a saga","value":0.5,"unit":"ms","note":""}
{"name":"PostgreSQL: three-step sagas, keyed, keyed, pivot, 256 callers: processor time of a saga","value":0.0625,"unit":"ms","note":""}
{"name":"PostgreSQL: three-step sagas, keyed, keyed, pivot, 256 callers: the server's processor time of a saga","value":0.125,"unit":"ms","note":""}
"#;

    #[test]
    fn the_server_counts_as_well_and_atomic_steps_do_not() {
        let costs = costs(LINES);
        let named = |name: &str| Semel { name: name.to_owned(), cpu_ms_per_saga: 0.0 };
        assert_eq!(costs.len(), 2);
        assert_eq!(costs[0], Semel { cpu_ms_per_saga: 0.1875, ..named("PostgreSQL") });
        assert_eq!(costs[1], Semel { cpu_ms_per_saga: 0.08, ..named("SQLite") });
        assert_eq!(text(LINES).lines().count(), 5);
    }
}
