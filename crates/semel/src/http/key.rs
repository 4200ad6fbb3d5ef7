//! Parses the key from its header: bare or as a structured-field string, and nothing in between.

use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, header};

use crate::intent::key::{Key, KeyError};

/// Why a request has no usable key. The client gets this text; it does not repeat the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum KeyRefusal {
    #[error("this operation needs a key; send the header {0} with a new unique key for each new intent")]
    Missing(HeaderName),
    #[error("the header {0} was sent more than once; send it once")]
    Repeated(HeaderName),
    #[error("the key begins with a quote but is not a structured-field string such as \"order-1001\"")]
    Quoting,
    #[error(
        "the key contains a comma and may be two keys that a proxy joined; a key with a comma must be quoted"
    )]
    Comma,
    #[error("the key is shorter than the {min} bytes this operation requires; use a UUID")]
    Weak { min: usize },
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// The key of a request; `None` when there is none.
pub(super) fn read(
    headers: &HeaderMap,
    name: &HeaderName,
    bytes_min: usize,
) -> Result<Option<Key>, KeyRefusal> {
    let mut lines = headers.get_all(name).iter();
    let Some(value) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err(KeyRefusal::Repeated(name.clone()));
    }
    let key = parse(value)?;
    if key.as_str().len() < bytes_min {
        return Err(KeyRefusal::Weak { min: bytes_min });
    }
    Ok(Some(key))
}

fn parse(value: &HeaderValue) -> Result<Key, KeyRefusal> {
    let bytes = value.as_bytes().trim_ascii();
    if bytes.first() == Some(&b'"') {
        return Ok(Key::new(unquoted(bytes)?)?);
    }
    // Two header lines and their joined form are the same message to every proxy on the way, so both are refused. A
    // quoted string may contain commas.
    if bytes.contains(&b',') {
        return Err(KeyRefusal::Comma);
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Key::new(text)?),
        // Bytes beyond ASCII become characters beyond ASCII; `Key` refuses them and gives the position.
        Err(_) => Ok(Key::new(String::from_utf8_lossy(bytes).into_owned())?),
    }
}

/// RFC 9651, section 4.2.5: a quote, printable ASCII with `\"` and `\\` as the only escapes, a quote, the end.
fn unquoted(bytes: &[u8]) -> Result<String, KeyRefusal> {
    let inner = bytes.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let mut inner = inner.ok_or(KeyRefusal::Quoting)?.iter();
    let mut text = String::with_capacity(inner.len());
    while let Some(byte) = inner.next() {
        text.push(char::from(match byte {
            b'\\' => match inner.next() {
                Some(escaped @ (b'"' | b'\\')) => *escaped,
                _ => return Err(KeyRefusal::Quoting),
            },
            b' '..=b'~' if *byte != b'"' => *byte,
            _ => return Err(KeyRefusal::Quoting),
        }));
    }
    Ok(text)
}

/// Headers whose value changes between two retries although the caller is the same.
pub(super) fn changes_between_retries(name: &HeaderName) -> bool {
    [header::AUTHORIZATION, header::PROXY_AUTHORIZATION, header::COOKIE].contains(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(bytes: &[u8]) -> Result<Key, KeyRefusal> {
        parse(&HeaderValue::from_bytes(bytes).unwrap())
    }

    #[test]
    fn bare_and_quoted_are_the_same_key() {
        for (sent, key) in [
            ("order-1001", "order-1001"),
            ("\"order-1001\"", "order-1001"),
            ("  order-1001\t", "order-1001"),
            (r#""a\"b\\c""#, r#"a"b\c"#),
            ("\"a, b\"", "a, b"),
            ("a b", "a b"),
            ("a\"b", "a\"b"),
        ] {
            assert_eq!(one(sent.as_bytes()).unwrap().as_str(), key, "{sent}");
        }
    }

    #[test]
    fn what_is_neither_is_refused() {
        for bad in [
            "",
            "\"\"",
            "\"",
            "\"a",
            "\"a\"b",
            "\"a\";p=1",
            "\"a\", \"b\"",
            r#""a\""#,
            r#""\a""#,
            "a, b",
            ",",
            "\"a\tb\"",
            "\" a\"",
        ] {
            assert!(one(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(one("schlüssel".as_bytes()).is_err());
        assert!(one(b"\"\xff\"").is_err());
        assert!(one("k".repeat(256).as_bytes()).is_err());
        assert!(one(format!("\"{}\"", "k".repeat(255)).as_bytes()).is_ok());
    }

    #[test]
    fn missing_repeated_and_weak() {
        let name = super::super::headers::IDEMPOTENCY_KEY;
        let mut headers = HeaderMap::new();
        assert_eq!(read(&headers, &name, 0), Ok(None));
        headers.append(&name, HeaderValue::from_static("k-1"));
        assert!(read(&headers, &name, 3).is_ok());
        assert_eq!(read(&headers, &name, 4), Err(KeyRefusal::Weak { min: 4 }));
        // Even the same key twice: joined by a proxy, it would be one with a comma.
        headers.append(&name, HeaderValue::from_static("k-1"));
        assert_eq!(read(&headers, &name, 0), Err(KeyRefusal::Repeated(name)));
    }

    proptest! {
        #[test]
        fn every_key_can_be_sent_quoted(text in "[!-~]([ -~]{0,200}[!-~])?") {
            let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
            let key = one(quoted.as_bytes()).unwrap();
            prop_assert_eq!(key.as_str(), text);
        }

        #[test]
        fn any_header_value_is_a_key_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let Ok(value) = HeaderValue::from_bytes(&bytes) else { return Ok(()) };
            if let Ok(key) = parse(&value) {
                prop_assert!(Key::new(key.as_str()).is_ok());
                // Nothing is dropped: the key gives back what was sent.
                let (sent, text) = (bytes.trim_ascii(), key.as_str());
                let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
                prop_assert!(sent == text.as_bytes() || sent == quoted.as_bytes());
            }
        }
    }
}
