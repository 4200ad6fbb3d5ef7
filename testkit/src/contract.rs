//! Contracts: what others rely on (tables, names, flags, stored bytes), as listings that are checked in and change only
//! on purpose.

use std::fmt::Write;
use std::fs;
use std::path::Path;

/// With this set, listings are written instead of compared.
pub const RENEW: &str = "SEMEL_RENEW_CONTRACTS";

/// Compares a listing with `contracts/NAME.txt` in the folder of a package.
///
/// # Panics
/// On any difference. The message names each line that is gone and each that is new, and the command that writes the
/// file anew.
#[track_caller]
pub fn pinned(package: &str, name: &str, listing: &str) {
    let file = Path::new(package).join("contracts").join(format!("{name}.txt"));
    if std::env::var_os(RENEW).is_some() {
        let folder = file.parent().expect("a folder");
        fs::create_dir_all(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        fs::write(&file, listing).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        return;
    }
    let written = fs::read_to_string(&file).unwrap_or_default();
    if let Some(difference) = difference(&written, listing) {
        let package = Path::new(package).file_name().unwrap_or_default().to_string_lossy();
        panic!(
            "the contract {} has changed:\n{difference}\
             What is gone breaks those who use it: see docs/upgrading.md. If the change is meant, write the file anew:\n  \
             {RENEW}=1 cargo test -p {package} --all-features contract\n",
            file.display()
        );
    }
}

/// The lines that only one of them has, or that their order differs.
fn difference(written: &str, listing: &str) -> Option<String> {
    if written == listing {
        return None;
    }
    let mut text = String::new();
    for (sign, from, other) in [("gone: ", written, listing), ("new:  ", listing, written)] {
        let mut others: Vec<&str> = other.lines().collect();
        for line in from.lines() {
            match others.iter().position(|there| *there == line) {
                Some(at) => drop(others.swap_remove(at)),
                // Writing to a String cannot fail.
                None => drop(writeln!(text, "{sign}{line}")),
            }
        }
    }
    if text.is_empty() {
        text.push_str("only the order of its lines differs\n");
    }
    Some(text)
}

/// SQL that creates tables, one line for each column, index or other statement. Without comments and layout. What is
/// between `$$` keeps its lines.
pub fn sql_listing(sql: &str) -> String {
    let mut listing = String::new();
    for statement in statements(sql) {
        let flat = flattened(&statement);
        let table = flat.strip_prefix("CREATE TABLE ").and_then(|rest| rest.split_once(" ("));
        let table = table.map(|(name, rest)| (name.trim_start_matches("IF NOT EXISTS "), rest));
        match table.filter(|(name, _)| !name.contains(' ')) {
            Some((name, rest)) => {
                let (items, tail) = items(rest);
                for item in items {
                    let _ = writeln!(listing, "{name}: {item}");
                }
                if !tail.trim().is_empty() {
                    let _ = writeln!(listing, "{name}: table options {}", tail.trim());
                }
            }
            None if statement.contains("$$") => {
                for line in statement.lines().map(flattened).filter(|line| !line.is_empty()) {
                    let _ = writeln!(listing, "{line}");
                }
            }
            None => drop(writeln!(listing, "{flat}")),
        }
    }
    listing
}

/// The statements of a script, without comments.
pub fn statements(sql: &str) -> Vec<String> {
    let (mut all, mut one) = (Vec::new(), String::new());
    let mut rest = sql;
    while let Some(next) = rest.chars().next() {
        let quoted = |mark: &str| rest[mark.len()..].find(mark).map(|end| end + 2 * mark.len());
        let taken = if rest.starts_with("--") {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
            continue;
        } else if rest.starts_with("$$") {
            // Comments inside a function's body go, too.
            let end = quoted("$$").unwrap_or(rest.len());
            for line in rest[..end].lines() {
                one.push_str(line.split_once("--").map_or(line, |(code, _)| code));
                one.push('\n');
            }
            rest = &rest[end..];
            continue;
        } else if next == ';' {
            all.push(std::mem::take(&mut one));
            1
        } else if ['\'', '"', '`'].contains(&next) {
            let end = quoted(&next.to_string()).unwrap_or(rest.len());
            one.push_str(&rest[..end]);
            end
        } else {
            one.push(next);
            next.len_utf8()
        };
        rest = &rest[taken..];
    }
    all.push(one);
    all.retain(|statement| !statement.trim().is_empty());
    all
}

fn flattened(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

/// What is between commas up to the closing parenthesis, and what comes after that.
fn items(text: &str) -> (Vec<&str>, &str) {
    let (mut depth, mut from, mut items) = (0, 0, Vec::new());
    for (at, sign) in text.char_indices() {
        match sign {
            '(' => depth += 1,
            ')' if depth == 0 => {
                items.push(text[from..at].trim());
                return (items, &text[at + 1..]);
            }
            ')' => depth -= 1,
            ',' if depth == 0 => {
                items.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    (items, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_and_what_is_new_is_named() {
        assert_eq!(difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(difference("a\nb\nb\n", "a\nc\nb\n").unwrap(), "gone: b\nnew:  c\n");
        assert!(difference("a\nb\n", "b\na\n").unwrap().contains("order"));
        assert_eq!(difference("", "a\n").unwrap(), "new:  a\n");
    }

    #[test]
    fn a_table_is_listed_by_its_columns() {
        let sql = "-- Some.\nCREATE TABLE t (\n    a int DEFAULT (1, 2), -- first; one\n    b text DEFAULT ';',\n    \
                   PRIMARY KEY (a, b)\n) STRICT;\nCREATE  INDEX i\n ON t (a);\nCREATE TABLE u (n int);\n\
                   CREATE FUNCTION f() AS $$\n  -- No.\n  BEGIN;\n  END\n$$;\n";
        let listed = "t: a int DEFAULT (1, 2)\nt: b text DEFAULT ';'\nt: PRIMARY KEY (a, b)\nt: table options STRICT\n\
                      CREATE INDEX i ON t (a)\nu: n int\nCREATE FUNCTION f() AS $$\nBEGIN;\nEND\n$$\n";
        assert_eq!(sql_listing(sql), listed);
    }
}
