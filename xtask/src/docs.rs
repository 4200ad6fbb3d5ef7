//! Checks the documents: relative links, their anchors, and the paths in CONTRIBUTING.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every Markdown file of the repository, without what is built.
fn documents() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md"].iter().map(|name| root().join(name)).collect();
    for folder in ["docs", "docs/decisions"] {
        let entries = fs::read_dir(root().join(folder)).expect("the folder").filter_map(Result::ok);
        found.extend(
            entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "md")),
        );
    }
    found
}

/// The targets of links and pictures, outside of code.
fn links(text: &str) -> Vec<String> {
    let mut code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        code ^= line.trim_start().starts_with("```");
        for rest in line.split("](").skip(1).filter(|_| !code) {
            found.extend(rest.split_once(')').map(|(target, _)| target.to_owned()));
        }
    }
    found
}

/// The anchors of a document: its headings, as forges name them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut code = false;
    let headings = text.lines().filter(|line| {
        code ^= line.starts_with("```");
        !code && line.starts_with('#')
    });
    let anchor = |line: &str| {
        let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
        line.trim_start_matches('#')
            .trim()
            .to_lowercase()
            .chars()
            .filter(kept)
            .collect::<String>()
            .replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for document in documents() {
        let text =
            fs::read_to_string(&document).unwrap_or_else(|error| panic!("{}: {error}", document.display()));
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (path, anchor) =
                link.split_once('#').map_or((link.as_str(), None), |(path, anchor)| (path, Some(anchor)));
            let target = match path {
                "" => document.clone(),
                path => document.parent().expect("a folder").join(path),
            };
            let leads = target.exists()
                && anchor.is_none_or(|anchor| {
                    fs::read_to_string(&target).is_ok_and(|text| anchors(&text).contains(anchor))
                });
            if !leads {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_paths_of_contributing_are_there() {
    let text = fs::read_to_string(root().join("CONTRIBUTING.md")).expect("CONTRIBUTING.md");
    let questions: Vec<&str> = text.lines().filter(|line| line.starts_with("| … ")).collect();
    assert_eq!(questions.len(), 12, "the questions of a newcomer");
    for question in questions {
        let path = question.split('`').nth(1).expect("a path");
        assert!(root().join(path).is_file(), "{question}");
    }
}

/// A listing that no test compares would say nothing.
#[test]
fn every_contract_is_compared_by_a_test() {
    for package in ["crates/semel", "crates/semel-cli"] {
        let folder = root().join(package);
        let sources = crate::tidy::files(&crate::tidy::root())
            .into_iter()
            .filter(|file| file.starts_with(crate::tidy::root().join(package)));
        let code: String = sources.map(|file| fs::read_to_string(file).expect("a source")).collect();
        for entry in fs::read_dir(folder.join("contracts")).expect("the contracts").filter_map(Result::ok) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let name = name.strip_suffix(".txt").expect("a listing");
            assert!(code.contains(&format!("pinned(\"{name}\"")), "{package}/contracts/{name}.txt");
        }
    }
}

/// The lines of a document's Rust examples.
fn rust_lines(text: &str) -> Vec<Vec<&str>> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("```rust") {
            blocks.push(lines.by_ref().take_while(|line| !line.starts_with("```")).collect());
        }
    }
    blocks
}

/// The saga in README is lines of the one in `docs/sagas.md`, which runs as a test.
#[test]
fn the_saga_of_the_readme_is_the_one_that_runs() {
    let [readme, sagas] = ["README.md", "docs/sagas.md"]
        .map(|name| fs::read_to_string(root().join(name)).expect("the document"));
    let blocks = rust_lines(&readme);
    let saga = blocks.iter().find(|block| block.iter().any(|line| line.contains("#[semel::saga")));
    let saga = saga.expect("README shows a saga");
    assert!(saga.len() <= 25, "{} lines", saga.len());
    let runs: Vec<&str> = rust_lines(&sagas).into_iter().flatten().collect();
    let other: Vec<&&str> = saga.iter().filter(|line| !runs.contains(line)).collect();
    assert!(other.is_empty(), "docs/sagas.md does not have: {other:#?}");
}

#[test]
fn a_link_in_code_is_none_and_an_anchor_is_a_heading() {
    let text = "# A `b`: c\n[x](y.md#z) [u](v)\n```\n[no](no)\n# no\n```\n";
    assert_eq!(links(text), ["y.md#z", "v"]);
    assert_eq!(anchors(text), BTreeSet::from(["a-b-c".to_owned()]));
}
