//! Content types: the essence, and the parameters that change how a body is read.

use std::borrow::Cow;

const JSON: &str = "application/json";

/// The type and subtype in lower case, without parameters.
///
/// Parameters stay out of the digest: another version of an SDK may add `charset=utf-8`, and a multipart
/// boundary is random. The essence is in it: the same bytes as a form and as text are two requests to the
/// handler that chooses by it.
pub(super) fn essence(content_type: &str) -> Cow<'_, str> {
    // The most common spelling.
    if content_type == JSON {
        return Cow::Borrowed(JSON);
    }
    let essence = content_type.split_once(';').map_or(content_type, |(essence, _)| essence).trim();
    match essence.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(essence.to_ascii_lowercase()),
        false => Cow::Borrowed(essence),
    }
}

/// How a body of that content type is read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reading {
    Raw,
    Json,
    Form,
    Multipart { boundary: String },
}

pub(super) fn reading(content_type: &str, essence: &str) -> Reading {
    if content_type == JSON {
        return Reading::Json;
    }
    match essence {
        "application/x-www-form-urlencoded" if is_utf8(content_type) => Reading::Form,
        "multipart/form-data" => match parameter(content_type, "boundary") {
            Some(boundary) => Reading::Multipart { boundary },
            None => Reading::Raw,
        },
        _ if is_json(essence) && is_utf8(content_type) => Reading::Json,
        _ => Reading::Raw,
    }
}

fn is_json(essence: &str) -> bool {
    essence == JSON
        || essence.strip_suffix("+json").is_some_and(|kind| kind.contains('/') && !kind.ends_with('/'))
}

/// In another charset the same bytes may be another text, so they are not decoded.
fn is_utf8(content_type: &str) -> bool {
    parameter(content_type, "charset")
        .is_none_or(|charset| charset.eq_ignore_ascii_case("utf-8") || charset.eq_ignore_ascii_case("utf8"))
}

/// The first parameter of that name, without its quotes.
pub(super) fn parameter(value: &str, name: &str) -> Option<String> {
    let (_, rest) = value.split_once(';')?;
    let found = parameters(rest)?.into_iter().find(|(key, _)| key == name)?;
    Some(found.1)
}

/// `a=b; c="d;e"` as pairs, names in lower case; nothing if it is malformed.
///
/// A quote inside quotes is written `\"`. The backslash is kept: browsers and SDKs disagree about what else
/// it escapes, and undecoded text cannot make two names one.
pub(super) fn parameters(mut rest: &str) -> Option<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Some(pairs);
        }
        let (name, after) = rest.split_once('=')?;
        let name = name.trim();
        if name.is_empty() || name.contains([';', '"']) {
            return None;
        }
        let after = after.trim_start();
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => {
                let end = closing_quote(quoted)?;
                (&quoted[..end], quoted[end + 1..].trim_start())
            }
            None => {
                let end = after.find(';').unwrap_or(after.len());
                (after[..end].trim_end(), &after[end..])
            }
        };
        pairs.push((name.to_ascii_lowercase(), value.to_owned()));
        rest = match after.strip_prefix(';') {
            Some(next) => next,
            None if after.is_empty() => after,
            None => return None,
        };
    }
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_quoted_value_without_a_semicolon_is_malformed() {
        let kind = "multipart/form-data; boundary=\"a\"";
        assert_eq!(parameter(kind, "boundary").as_deref(), Some("a"));
        assert_eq!(parameter(&format!("{kind}; charset=utf-8"), "boundary").as_deref(), Some("a"));
        assert_eq!(parameter(&format!("{kind} charset=utf-8"), "boundary"), None);
    }

    #[test]
    fn content_types_are_read_as_they_say() {
        let multipart = |boundary: &str| Reading::Multipart { boundary: boundary.to_owned() };
        for (content_type, kind, expected) in [
            ("application/json", "application/json", Reading::Json),
            ("Application/JSON ; charset=UTF-8", "application/json", Reading::Json),
            ("application/json;charset=\"utf-8\"", "application/json", Reading::Json),
            ("application/json; charset=utf-16", "application/json", Reading::Raw),
            ("application/vnd.api+json", "application/vnd.api+json", Reading::Json),
            ("application/json-seq", "application/json-seq", Reading::Raw),
            ("application/x-www-form-urlencoded", "application/x-www-form-urlencoded", Reading::Form),
            (
                "application/x-www-form-urlencoded; charset=latin1",
                "application/x-www-form-urlencoded",
                Reading::Raw,
            ),
            ("+json", "+json", Reading::Raw),
            ("text/plain", "text/plain", Reading::Raw),
            ("", "", Reading::Raw),
            ("application/x-www-form-urlencoded", "application/x-www-form-urlencoded", Reading::Form),
            ("multipart/form-data", "multipart/form-data", Reading::Raw),
            ("multipart/form-data; boundary=a1", "multipart/form-data", multipart("a1")),
            (
                "multipart/form-data; charset=utf-8; BOUNDARY=\"a; b\"",
                "multipart/form-data",
                multipart("a; b"),
            ),
            ("multipart/mixed; boundary=a1", "multipart/mixed", Reading::Raw),
        ] {
            assert_eq!(essence(content_type), kind);
            assert_eq!(reading(content_type, kind), expected, "{content_type}");
        }
    }

    #[test]
    fn parameters_are_split_outside_quotes_only() {
        let read = |text| {
            parameters(text).map(|pairs| {
                pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
            })
        };
        let some = |pairs: &[&str]| Some(pairs.iter().map(|&pair| pair.to_owned()).collect::<Vec<_>>());
        assert_eq!(read(""), some(&[]));
        assert_eq!(read("a=b; C = \"d;e=\\\"f\" ;"), some(&["a=b", "c=d;e=\\\"f"]));
        assert_eq!(read("a="), some(&["a="]));
        for malformed in ["a", "=b", "a=\"b", "a=\"b\\\"", "a=\"b\"c", "a;b=c", ";a=b"] {
            assert_eq!(read(malformed), None, "{malformed}");
        }
    }
}
