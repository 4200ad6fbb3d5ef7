//! Why a slow test is slow: a line `Slow: …` in the comment above it.

use std::fs;
use std::path::{Path, PathBuf};

/// A test that takes longer has its reason beside it.
pub(crate) const REASON_FROM_SECONDS: f64 = 10.0;

/// Folders with tests.
const FOLDERS: &[&str] = &["crates", "examples", "proof", "simulation", "testkit", "xtask"];

/// The sources in which reasons are looked for.
pub(crate) struct Sources(Vec<String>);

impl Sources {
    pub(crate) fn read(root: &Path) -> Self {
        let mut texts = Vec::new();
        let mut open: Vec<PathBuf> = FOLDERS.iter().map(|folder| root.join(folder)).collect();
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() && !path.ends_with("target") {
                    open.push(path);
                } else if path.extension().is_some_and(|ending| ending == "rs") {
                    texts.extend(fs::read_to_string(path).ok());
                }
            }
        }
        Self(texts)
    }

    /// The reason beside the test of this name, as the test run prints it: `binary module::test`.
    pub(crate) fn reason(&self, test: &str) -> Option<&str> {
        let name = test.rsplit([':', ' ']).next()?;
        // A law of the conformance suite is generic.
        let functions = ["(", "<"].map(|next| format!("fn {name}{next}"));
        functions.iter().find_map(|function| self.0.iter().find_map(|text| reason_in(text, function)))
    }
}

fn reason_in<'a>(text: &'a str, function: &str) -> Option<&'a str> {
    let mut rest = text;
    while let Some(at) = rest.find(function) {
        let above = rest[..at].lines().rev().skip(1);
        let beside = above.map(str::trim).take_while(|line| line.starts_with("//") || line.starts_with("#["));
        for line in beside {
            if let Some((_, reason)) = line.split_once("Slow: ") {
                return Some(reason);
            }
        }
        rest = &rest[at + function.len()..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_the_one_beside_its_own_test() {
        let text = "/// Slow: it waits.\n#[test]\nfn one() {}\n\n#[test]\nfn two() {}\n\n\
                    // Slow: many rows.\npub async fn law<H: Harness>() {}\n";
        let sources = Sources(vec![text.to_owned()]);
        assert_eq!(sources.reason("proof-rails relay::one"), Some("it waits."));
        assert_eq!(sources.reason("proof-rails relay::two"), None);
        assert_eq!(sources.reason("proof-rails three"), None);
        assert_eq!(sources.reason("proof-stores store::laws::law"), Some("many rows."));
    }
}
