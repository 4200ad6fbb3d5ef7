//! What neither the compiler nor clippy checks: length of files, direction of imports, tables of modules, names, words,
//! `rust-version`, features.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::{features, module_tables, words};

/// Lines of a file. What is longer is two files.
const LINES_MAX: usize = 600;

/// Files that are longer, with the reason.
const LONGER: &[(&str, &str)] = &[];

/// What a folder of the library must not import: imports go one way (docs/ARCHITECTURE.md).
const IMPORTS: &[(&str, &[&str])] = &[
    (
        "intent",
        &["store", "guard", "http", "tx", "outbox", "relay", "sink", "source", "broker", "inbox", "recover"],
    ),
    ("store", &["guard", "http", "relay", "sink", "source", "broker", "inbox", "recover"]),
    ("guard", &["http", "tx", "outbox", "relay", "sink", "source", "broker", "inbox", "recover"]),
    ("tx", &["http", "outbox", "relay", "sink", "source", "broker", "inbox", "recover"]),
    ("outbox", &["guard", "http", "relay", "sink", "source", "broker", "inbox", "recover"]),
    ("sink", &["guard", "http", "tx", "relay", "inbox", "recover"]),
    ("source", &["guard", "http", "tx", "relay", "recover"]),
    ("broker", &["guard", "http", "tx", "relay", "inbox", "recover"]),
    ("relay", &["guard", "http", "source", "broker", "inbox", "recover"]),
];

/// Everything that is wrong, one line each.
pub(crate) fn check() -> Result<(), String> {
    let root = root();
    let (mut wrong, mut public, mut library) = (Vec::new(), Vec::new(), BTreeMap::new());
    for file in files(&root) {
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
        wrong.extend(too_long(&name, &text));
        wrong.extend(wrong_imports(&name, &text));
        if name.starts_with("crates/semel/src/") {
            let types = words::public_types(&text).into_iter();
            public.extend(types.map(|(declared, line)| (declared, format!("{name}:{line}"))));
            library.insert(name, text);
        }
    }
    wrong.extend(words::shared(public));
    wrong.extend(module_tables::unnamed(&library));
    for file in prose(&root) {
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
        wrong.extend(words::forbidden(&name, &text));
        wrong.extend(unnamed_columns(&name, &text));
    }
    wrong.extend(rust_version(&root)?);
    wrong.extend(features::for_tests_in_production()?);
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Folders of source code.
const SOURCES: &[&str] = &["crates", "examples", "proof", "simulation", "testkit", "xtask"];

/// Every source file, without what is built.
pub(crate) fn files(root: &Path) -> Vec<PathBuf> {
    walk(SOURCES.iter().map(|folder| root.join(folder)).collect(), &["rs"])
}

/// What people read: sources with their SQL and Lua, and the documentation.
fn prose(root: &Path) -> Vec<PathBuf> {
    let folders = SOURCES.iter().chain(&["docs"]).map(|folder| root.join(folder)).collect();
    let mut found = walk(folders, &["rs", "sql", "lua", "md"]);
    found.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"].map(|name| root.join(name)));
    found
}

fn walk(mut open: Vec<PathBuf>, ends: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok) {
            let path = entry.path();
            if path.is_dir() && !path.ends_with("target") {
                open.push(path);
            } else if path.extension().is_some_and(|end| ends.iter().any(|wanted| end == *wanted)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn too_long(name: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    let allowed = LONGER.iter().any(|(longer, _)| *longer == name);
    (lines > LINES_MAX && !allowed).then(|| format!("{name}: {lines} lines, more than {LINES_MAX}: split it"))
}

fn wrong_imports(name: &str, text: &str) -> Vec<String> {
    let folder = name.strip_prefix("crates/semel/src/").and_then(|rest| rest.split_once('/'));
    let Some((_, forbidden)) = folder.and_then(|(folder, _)| IMPORTS.iter().find(|(one, _)| *one == folder))
    else {
        return Vec::new();
    };
    let code = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
    let imports = |line: &str, other: &str| {
        line.match_indices("crate::").any(|(at, found)| {
            let rest = &line[at + found.len()..];
            rest.strip_prefix(other)
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        })
    };
    code.flat_map(|(number, line)| {
        let others = forbidden.iter().filter(move |other| imports(line, other));
        others.map(move |other| format!("{name}:{}: must not import `{other}`", number + 1))
    })
    .collect()
}

/// Statements of the library that insert without naming the columns: they fail as soon as a newer version of semel adds
/// one, while this one is still running. A file that creates the tables may do so.
fn unnamed_columns(name: &str, text: &str) -> Vec<String> {
    if !name.starts_with("crates/semel/src/") || text.contains("CREATE TABLE") {
        return Vec::new();
    }
    let unnamed = |line: &str| {
        let (_, rest) = line.split_once("INSERT INTO semel_")?;
        let table = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_').trim_start();
        (table.starts_with("VALUES") || table.starts_with("SELECT")).then_some(())
    };
    let found = text.lines().enumerate().filter(|(_, line)| unnamed(line).is_some());
    found.map(|(at, _)| format!("{name}:{}: name the columns of this INSERT", at + 1)).collect()
}

/// The workspace names at least the Rust that its dependencies need.
fn rust_version(root: &Path) -> Result<Option<String>, String> {
    let line =
        ["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"];
    let output = Command::new("cargo").args(line).current_dir(root).output();
    let output = output.map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}: {}", String::from_utf8_lossy(&output.stderr)))?;
    Ok(older_than_needed(&metadata))
}

fn older_than_needed(metadata: &Value) -> Option<String> {
    let used: Vec<&str> =
        metadata["resolve"]["nodes"].as_array()?.iter().filter_map(|node| node["id"].as_str()).collect();
    let packages = metadata["packages"].as_array()?;
    let packages =
        packages.iter().filter(|package| package["id"].as_str().is_some_and(|id| used.contains(&id)));
    let needs = |package: &Value| {
        let mut version: Vec<u32> =
            package["rust_version"].as_str()?.split('.').filter_map(|part| part.parse().ok()).collect();
        version.resize(3, 0);
        Some((version, package["name"].as_str()?.to_owned()))
    };
    let ours = packages.clone().find(|package| package["name"] == "semel").and_then(needs)?.0;
    let (most, name) = packages.filter_map(needs).max()?;
    let text = |version: &[u32]| version.iter().map(u32::to_string).collect::<Vec<_>>().join(".");
    (ours < most)
        .then(|| format!("Cargo.toml: rust-version is {}, and {name} needs {}", text(&ours), text(&most)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_insert_names_its_columns() {
        let found = |text| unnamed_columns("crates/semel/src/relay/poll/mysql.rs", text).len();
        assert_eq!(found("\"INSERT INTO semel_outbox_relay VALUES (1)\""), 1);
        assert_eq!(found("INSERT INTO semel_outbox_parked SELECT * FROM t"), 1);
        assert_eq!(found("INSERT INTO semel_outbox_relay (id) VALUES (1)"), 0);
        assert_eq!(found("CREATE TABLE semel_t (n int); INSERT INTO semel_t VALUES (1)"), 0);
    }

    #[test]
    fn every_large_folder_of_the_library_begins_with_a_table() {
        let sources = files(&root()).into_iter();
        let text = |file: PathBuf| {
            let name = file.strip_prefix(root()).unwrap().display().to_string();
            Some((name, fs::read_to_string(&file).unwrap()))
                .filter(|(name, _)| name.starts_with("crates/semel/src/"))
        };
        assert_eq!(module_tables::unnamed(&sources.filter_map(text).collect()), Vec::<String>::new());
    }

    #[test]
    fn imports_go_one_way() {
        let text =
            "use crate::intent::Key;\n// crate::guard\nuse crate::guard::Guard;\nuse crate::guarded;\n";
        let wrong = wrong_imports("crates/semel/src/store/memory.rs", text);
        assert_eq!(wrong, ["crates/semel/src/store/memory.rs:3: must not import `guard`"]);
        assert_eq!(wrong_imports("crates/semel/src/lib.rs", text), Vec::<String>::new());
    }

    #[test]
    fn a_long_file_is_named() {
        let text = "line\n".repeat(LINES_MAX + 1);
        assert!(too_long("a.rs", &text).is_some_and(|line| line.contains("601 lines")));
        assert_eq!(too_long("a.rs", "line\n"), None);
        // An exception that is not needed any more goes.
        for (name, _) in LONGER {
            let lines = fs::read_to_string(root().join(name)).unwrap_or_default().lines().count();
            assert!(lines > LINES_MAX, "{name} has {lines} lines: take it off the list");
        }
    }

    #[test]
    fn a_dependency_that_needs_a_newer_rust_is_named() {
        let package = |name: &str, version: &str| serde_json::json!({"id": name, "name": name, "rust_version": version});
        let metadata = |ours: &str| {
            serde_json::json!({
                "packages": [package("semel", ours), package("sqlx", "1.94.0"), package("unused", "1.99")],
                "resolve": {"nodes": [{"id": "semel"}, {"id": "sqlx"}]},
            })
        };
        let line = "Cargo.toml: rust-version is 1.91.0, and sqlx needs 1.94.0";
        assert_eq!(older_than_needed(&metadata("1.91")).as_deref(), Some(line));
        assert_eq!(older_than_needed(&metadata("1.94")), None);
        assert_eq!(older_than_needed(&metadata("1.95")), None);
    }
}
