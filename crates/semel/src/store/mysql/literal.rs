//! Values as SQL literals. Several statements in one packet cannot have parameters. So every value from outside is
//! written in hexadecimal digits, which rules out SQL injection.

use std::fmt::Write;
use std::sync::LazyLock;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// A binary string.
pub(crate) fn bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2 + 3);
    push_bytes(&mut out, bytes);
    out
}

pub(super) fn push_bytes(out: &mut String, bytes: &[u8]) {
    out.push_str("X'");
    for byte in bytes {
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    out.push('\'');
}

/// A text.
pub(crate) fn text(text: &str) -> String {
    format!("_utf8mb4 {}", bytes(text.as_bytes()))
}

pub(super) fn text_or_null(value: Option<&str>) -> String {
    value.map_or_else(|| "NULL".to_owned(), text)
}

pub(super) fn bytes_or_null(value: Option<&[u8]>) -> String {
    value.map_or_else(|| "NULL".to_owned(), bytes)
}

pub(super) fn number_or_null(value: Option<i64>) -> String {
    value.map_or_else(|| "NULL".to_owned(), |value| value.to_string())
}

/// Several ids, separated by commas.
pub(super) fn list<'a>(ids: impl IntoIterator<Item = &'a [u8; 32]>) -> String {
    let mut out = String::new();
    for id in ids {
        if !out.is_empty() {
            out.push(',');
        }
        push_bytes(&mut out, id);
    }
    out
}

/// Appends a row to a derived table (`SELECT … UNION ALL SELECT …`). The first row names the columns.
pub(super) fn push_row(rows: &mut String, values: &[(&str, &str)]) {
    let first = rows.is_empty();
    rows.push_str(if first { "SELECT " } else { " UNION ALL SELECT " });
    for (n, (name, value)) in values.iter().enumerate() {
        rows.push_str(if n == 0 { "" } else { ", " });
        rows.push_str(value);
        if first {
            rows.push_str(" AS ");
            rows.push_str(name);
        }
    }
}

/// A statement's text without its comments, with `{columns}` filled in.
pub(super) struct Template(LazyLock<String, fn() -> String>);

impl Template {
    pub(super) const fn new(text: fn() -> String) -> Self {
        Self(LazyLock::new(text))
    }

    /// Fills in the placeholders, each once: a value is never searched for placeholders.
    pub(super) fn fill(&self, values: &[(&str, &str)]) -> String {
        let room: usize = values.iter().map(|(_, value)| value.len()).sum();
        let mut out = String::with_capacity(self.0.len() + room + 256);
        let mut rest = self.0.as_str();
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').unwrap_or((after, ""));
            out.push_str(before);
            match values.iter().find(|(known, _)| *known == name) {
                Some((_, value)) => out.push_str(value),
                // Left unchanged, so that the server refuses the statement.
                None => drop(write!(out, "{{{name}}}")),
            }
            rest = after;
        }
        out.push_str(rest);
        out
    }
}

/// Removes the comments of a file: the text is sent thousands of times a second.
pub(super) fn without_comments(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("--"));
    lines.collect::<Vec<_>>().join("\n")
}

/// A [`Template`] of a file beside this one.
macro_rules! template {
    ($file:literal) => {
        $crate::store::mysql::literal::Template::new(|| {
            $crate::store::mysql::literal::without_comments(include_str!($file))
                .replace("{columns}", $crate::store::mysql::row::COLUMNS)
        })
    };
}
pub(super) use template;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_in_a_value_it_is_written_in_digits() {
        assert_eq!(
            text("'; DROP TABLE semel_intent; --"),
            format!("_utf8mb4 {}", bytes(b"'; DROP TABLE semel_intent; --"))
        );
        assert!(text("{id}'\\").bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_ '".contains(&byte)));
        assert_eq!(bytes(&[]), "X''");
        assert_eq!(bytes(&[0, 255, 16]), "X'00ff10'");
    }

    #[test]
    fn a_template_is_filled_once() {
        static SHAPE: Template = Template::new(|| "a {x} b {y} {x}".to_owned());
        assert_eq!(SHAPE.fill(&[("x", "{y}"), ("y", "2")]), "a {y} b 2 {y}");
        assert_eq!(SHAPE.fill(&[("x", "1")]), "a 1 b {y} 1");
    }
}
