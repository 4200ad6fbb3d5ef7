//! The library's features: which build alone, and which no production build has.

use std::process::Command;

use crate::tidy::root;

/// Features of the library that must build alone. With all of them together nothing shows that one leans on another.
/// The slowest is last.
pub(crate) const ALONE: &[&str] = &[
    "",
    "conformance",
    "crash-points",
    "fault-injection",
    "macros",
    "saga",
    "saga-test",
    "http",
    "axum",
    "client",
    "reqwest",
    "forward",
    "webhook",
    "webhook-receiver",
    "zstd",
    "seal",
    "sqlite",
    "postgres",
    "postgres-tls",
    "sqlx-postgres",
    "mysql",
    "mysql-tls",
    "redis",
    "redis-tls",
    "rabbitmq",
    "nats",
    "kafka",
    "sqs",
];

/// Features that a test needs and no production build may have.
const FOR_TESTS: &[&str] = &["conformance", "crash-points", "fault-injection", "saga-test"];

/// Features for tests that the binary enables, by default or with `full`.
pub(crate) fn for_tests_in_production() -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for features in ["", "full"] {
        let line = ["tree", "--locked", "--package", "semel-cli", "--features", features];
        // Without development dependencies, which do enable them.
        let shown = ["--edges", "normal,build", "--prefix", "none", "--format", "{p}|{f}"];
        let output = Command::new("cargo").args(line).args(shown).current_dir(root()).output();
        let output = output.map_err(|error| format!("cargo tree: {error}"))?;
        let tree = String::from_utf8_lossy(&output.stdout);
        let enabled = enabled(&tree)
            .ok_or_else(|| format!("cargo tree: no `semel`: {}", String::from_utf8_lossy(&output.stderr)))?;
        let found = FOR_TESTS.iter().filter(|feature| enabled.contains(feature));
        wrong.extend(found.map(|feature| {
            format!(
                "crates/semel-cli with features {features:?} enables `semel/{feature}`, which is for tests"
            )
        }));
    }
    Ok(wrong)
}

/// The features of `semel` in the output of `cargo tree`.
fn enabled(tree: &str) -> Option<Vec<&str>> {
    let line = tree.lines().find(|line| line.starts_with("semel v"))?;
    let (_, features) = line.trim_end_matches(" (*)").split_once('|')?;
    Some(features.split(',').collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    /// The features that the manifest declares, without `default` and the internal ones.
    fn declared() -> BTreeSet<String> {
        let manifest = fs::read_to_string(root().join("crates/semel/Cargo.toml")).unwrap();
        let (_, rest) = manifest.split_once("\n[features]\n").unwrap();
        let (features, _) = rest.split_once("\n[").unwrap();
        let names = features
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once(" = "))
            .map(|(name, _)| name);
        names.filter(|name| *name != "default" && !name.starts_with('_')).map(str::to_owned).collect()
    }

    #[test]
    fn every_feature_is_built_alone() {
        let alone: BTreeSet<String> =
            ALONE.iter().filter(|name| !name.is_empty()).map(|name| (*name).to_owned()).collect();
        assert_eq!(alone, declared(), "the list here and `[features]` of crates/semel/Cargo.toml");
    }

    #[test]
    fn every_feature_is_in_the_readme() {
        let readme = fs::read_to_string(root().join("crates/semel/README.md")).unwrap();
        let rows =
            readme.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split('|').nth(1));
        let listed: BTreeSet<String> = rows
            .flat_map(|cell| cell.split(',').map(|name| name.trim().trim_matches('`').to_owned()))
            .collect();
        assert_eq!(listed, declared(), "the table in crates/semel/README.md");
    }

    #[test]
    fn a_feature_of_tests_is_found_in_a_production_build() {
        let tree = "semel-cli v0.1.0 (/x)|default\nsemel v0.1.0 (/x)|crash-points,sqlite (*)\n";
        assert_eq!(enabled(tree).unwrap(), ["crash-points", "sqlite"]);
        assert_eq!(enabled("semel-cli v0.1.0|default\n"), None);
    }
}
