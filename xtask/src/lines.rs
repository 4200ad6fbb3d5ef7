//! `cargo xtask lines`: how large each folder is.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use clap::Args;
use serde::Serialize;

use crate::tidy;

/// Count the lines of code, comments and tests of each folder.
///
/// Code is what is left without blank lines, comments and tests. Tests are the folders tests/, simulation/, proof/ and
/// testkit/, files named *_tests.rs, and what follows `#[cfg(test)]` at the end of a file.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq, Debug, Serialize)]
struct Lines {
    files: usize,
    code: usize,
    comments: usize,
    tests: usize,
}

impl Lines {
    fn add(&mut self, other: Self) {
        self.files += other.files;
        self.code += other.code;
        self.comments += other.comments;
        self.tests += other.tests;
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let root = tidy::root();
    let mut folders: BTreeMap<String, Lines> = BTreeMap::new();
    for file in tidy::files(&root) {
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let name = file.strip_prefix(&root).unwrap_or(&file);
        folders.entry(folder(name)).or_default().add(count(&text, is_test(name)));
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&folders).map_err(|error| error.to_string())?);
        return Ok(());
    }
    println!("{:<34} {:>6} {:>8} {:>9} {:>8}", "folder", "files", "code", "comments", "tests");
    let row = |name: &str, lines: &Lines| {
        println!("{name:<34} {:>6} {:>8} {:>9} {:>8}", lines.files, lines.code, lines.comments, lines.tests);
    };
    let (mut library, mut all) = (Lines::default(), Lines::default());
    for (name, lines) in &folders {
        row(name, lines);
        all.add(*lines);
        if name.starts_with("crates/semel/src") {
            library.add(*lines);
        }
    }
    row("crates/semel/src, all", &library);
    row("all", &all);
    Ok(())
}

/// Folders of the library by themselves, the others as a whole.
fn folder(name: &Path) -> String {
    let parts: Vec<String> = name.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let folders = &parts[..parts.len() - 1];
    let depth = if parts.starts_with(&["crates".to_owned(), "semel".to_owned(), "src".to_owned()]) {
        4
    } else if parts[0] == "crates" {
        3
    } else {
        1
    };
    folders[..depth.min(folders.len())].join("/")
}

fn is_test(name: &Path) -> bool {
    let text = name.to_string_lossy();
    ["proof/", "simulation/", "testkit/"].iter().any(|folder| text.starts_with(folder))
        || text.contains("/tests/")
        || text.ends_with("_tests.rs")
        || text.ends_with("/tests.rs")
}

fn count(text: &str, all_tests: bool) -> Lines {
    let mut lines = Lines { files: 1, ..Lines::default() };
    let mut tests = all_tests;
    let mut rows = text.lines().map(str::trim).peekable();
    while let Some(line) = rows.next() {
        // A module of tests; what is only built for tests in the middle of a file counts as code.
        tests |= line == "#[cfg(test)]" && rows.peek().is_some_and(|next| *next == "mod tests {");
        if line.is_empty() {
        } else if tests {
            lines.tests += 1;
        } else if line.starts_with("//") {
            lines.comments += 1;
        } else {
            lines.code += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_by_kind() {
        let text = "//! Doc.\n\nfn one() {\n    // Why.\n}\n\n#[cfg(test)]\nmod tests {\n    // A comment of a test.\n}\n";
        assert_eq!(count(text, false), Lines { files: 1, code: 2, comments: 2, tests: 4 });
        assert_eq!(count(text, true), Lines { files: 1, code: 0, comments: 0, tests: 8 });
        // Only what is built for tests is no module of tests.
        assert_eq!(count("#[cfg(test)]\nuse a::b;\nfn c() {}\n", false).tests, 0);
    }

    #[test]
    fn folders_of_the_library_stand_by_themselves() {
        assert_eq!(folder(Path::new("crates/semel/src/relay/cdc/slot.rs")), "crates/semel/src/relay");
        assert_eq!(folder(Path::new("crates/semel/src/lib.rs")), "crates/semel/src");
        assert_eq!(folder(Path::new("crates/semel-cli/src/main.rs")), "crates/semel-cli/src");
        assert_eq!(folder(Path::new("xtask/src/main.rs")), "xtask");
        assert!(
            is_test(Path::new("crates/semel/tests/it/main.rs")) && !is_test(Path::new("xtask/src/main.rs"))
        );
    }
}
