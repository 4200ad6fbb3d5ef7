//! The names that people build dashboards, alerts and consumers on, as they stand in the source.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::pinned;
use crate::observe::names;

/// Every source file of the library with its path, without its tests.
fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut open, mut found) = (vec![root.clone()], Vec::<PathBuf>::new());
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let name = entry.file_name().into_string().unwrap();
            let is_test =
                ["_tests.rs", "properties.rs", "model_world.rs"].iter().any(|end| name.ends_with(end));
            if path.is_dir() && name != "contracts" && name != "conformance" {
                open.push(path);
            } else if name.ends_with(".rs") && !is_test {
                found.push(path);
            }
        }
    }
    found.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().to_owned();
        (path.strip_prefix(&root).unwrap().display().to_string(), code)
    };
    found.into_iter().map(read).collect()
}

/// The arguments of every call of this macro, split at their commas.
fn calls(code: &str, name: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(name) {
        let (mut depth, mut quoted, mut escaped) = (0, false, false);
        let mut arguments = vec![String::new()];
        for sign in code[at + name.len()..].chars() {
            let last = arguments.last_mut().unwrap();
            match sign {
                _ if escaped => escaped = false,
                '\\' if quoted => escaped = true,
                '"' => {
                    quoted = !quoted;
                    last.push(sign);
                }
                _ if quoted => last.push(sign),
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => {
                    depth -= 1;
                    if depth == 0 {
                        break;
                    }
                }
                ',' if depth == 1 => arguments.push(String::new()),
                _ => last.push(sign),
            }
        }
        let trimmed = arguments.iter().map(|argument| argument.trim().to_owned());
        found.push(trimmed.filter(|argument| !argument.is_empty()).collect());
    }
    found
}

/// The field that an argument sets. None for `target:`, `parent:` and the message.
fn field(argument: &str) -> Option<&str> {
    let name = argument.split_once('=').map_or(argument, |(name, _)| name);
    let name = name.trim().trim_start_matches(['%', '?']);
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "._#".contains(c));
    is_name.then(|| name.trim_start_matches("r#"))
}

/// The names of a file as they are used, with what they name.
fn constants(code: &str) -> Vec<(&str, &str)> {
    let constant = |line| -> Option<(_, _)> {
        let (name, value) = str::strip_prefix(line, "pub const ")?.split_once(": &str = \"")?;
        Some((name, value.strip_suffix("\";")?))
    };
    code.lines().filter_map(constant).collect()
}

fn listing(lines: BTreeSet<String>) -> String {
    lines.into_iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[test]
fn contract_names_of_metrics_labels_and_spans() {
    let kind = |name: &str| match name.split_once('_') {
        Some(("LABEL", _)) => "label",
        Some(("SPAN", _)) => "span",
        Some(("RAIL", _)) => "rail",
        _ => "metric",
    };
    let names = constants(OBSERVED).into_iter().map(|(name, value)| format!("{} {value}", kind(name)));
    let lines: BTreeSet<String> = names.collect();
    assert!(lines.contains(&format!("metric {}", names::CLAIM)), "{lines:?}");
    pinned("names", &listing(lines));
}

const OBSERVED: &str = include_str!("../observe/names.rs");

#[test]
fn contract_spans_and_their_fields() {
    let names = constants(OBSERVED);
    let mut lines = BTreeSet::new();
    for (file, code) in sources() {
        for call in calls(&code, "_span!") {
            let mut arguments = call.iter().skip_while(|argument| argument.contains(": "));
            let used = arguments.next().and_then(|name| name.strip_prefix("names::"));
            let name = names.iter().find(|(name, _)| Some(*name) == used);
            let (_, name) = name.unwrap_or_else(|| panic!("{file}: name the span in observe/names.rs"));
            let fields: BTreeSet<&str> = arguments.filter_map(|argument| field(argument)).collect();
            let fields: Vec<&str> = fields.into_iter().collect();
            lines.insert(format!("{name}: {}", fields.join(", ")));
        }
    }
    assert!(lines.iter().any(|line| line.starts_with(names::SPAN_CLAIM)), "{lines:?}");
    pinned("spans", &listing(lines));
}

#[test]
fn contract_fields_of_log_lines() {
    let mut lines = BTreeSet::new();
    for (_, code) in sources() {
        for level in ["error", "warn", "info", "debug"] {
            for call in calls(&code, &format!("tracing::{level}!")) {
                let target = call.iter().find_map(|argument| argument.strip_prefix("target:"));
                let target = target.unwrap_or("the module").trim().trim_matches('"');
                let fields: BTreeSet<&str> = call.iter().filter_map(|argument| field(argument)).collect();
                lines.extend(fields.iter().map(|field| format!("{target} {level} {field}")));
            }
        }
    }
    pinned("log_fields", &listing(lines));
}

/// The values of constants that name a header, a message attribute or a field of a stream.
#[test]
fn contract_headers_and_attributes() {
    const BEGINS: [&str; 6] = ["semel-", "idempoten", "webhook-", "x-", "stripe-", "traceparent"];
    let mut lines = BTreeSet::new();
    for (_, code) in sources() {
        for line in code.lines().filter(|line| line.contains("const ")) {
            let value = line.split('"').nth(1).unwrap_or_default();
            if BEGINS.iter().any(|begin| value.starts_with(begin)) && !value.contains(['.', '_']) {
                lines.insert(value.to_owned());
            }
        }
    }
    assert!(lines.contains("idempotency-key") && lines.contains("semel-id"), "{lines:?}");
    pinned("headers", &listing(lines));
}
