//! `a=1&b=2`: query strings and `application/x-www-form-urlencoded` bodies.

use std::borrow::Cow;

use super::frame::{Frame, Tag};

/// A name and its value, decoded. `a` has no value, `a=` an empty one.
pub(super) struct Pair<'a> {
    name: Cow<'a, [u8]>,
    value: Option<Cow<'a, [u8]>>,
}

/// The decoded pairs of `text` in their order; nothing if an escape is broken.
///
/// Decoded as forms are, with `+` for a space. The result is bytes and need not be UTF-8.
pub(super) fn decode(text: &[u8]) -> Option<Vec<Pair<'_>>> {
    text.split(|&byte| byte == b'&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let mut halves = pair.splitn(2, |&byte| byte == b'=');
            let name = unescape(halves.next()?)?;
            let value = match halves.next() {
                Some(value) => Some(unescape(value)?),
                None => None,
            };
            Some(Pair { name, value })
        })
        .collect()
}

/// Sorts by name; pairs of one name keep their order, because it says which element comes first.
///
/// Where a name holds `[]`, only what stands before counts. Frameworks read `i[][id]=1&i[][n]=2&i[][id]=3` as
/// a list whose elements begin where a name comes again, so the order across these names has a meaning.
pub(super) fn sort(pairs: &mut [Pair<'_>]) {
    pairs.sort_by(|a, b| list(&a.name).cmp(list(&b.name)));
}

fn list(name: &[u8]) -> &[u8] {
    let end = name.windows(2).position(|two| two == b"[]").unwrap_or(name.len());
    &name[..end]
}

pub(super) fn describe(pairs: &[Pair<'_>], name: Tag, value: Tag, frame: &mut Frame) {
    for pair in pairs {
        frame.part(name, &pair.name);
        if let Some(bytes) = &pair.value {
            frame.part(value, bytes);
        }
    }
}

fn unescape(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    if !text.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Some(Cow::Borrowed(text));
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(&byte) = rest.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => hex(*rest.next()?)? << 4 | hex(*rest.next()?)?,
            _ => byte,
        });
    }
    Some(Cow::Owned(decoded))
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `name=value`, or `name` alone, joined by a space.
    fn sorted(text: &str) -> Option<String> {
        let mut pairs = decode(text.as_bytes())?;
        sort(&mut pairs);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let show = |pair: &Pair<'_>| match &pair.value {
            Some(value) => format!("{}={}", text(&pair.name), text(value)),
            None => text(&pair.name),
        };
        Some(pairs.iter().map(show).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn pairs_are_decoded_and_sorted_by_name() {
        for (text, expected) in [
            ("", ""),
            ("&&", ""),
            ("b=2&a=1", "a=1 b=2"),
            ("a=2&b=0&a=1", "a=2 a=1 b=0"),
            ("a", "a"),
            ("a=", "a="),
            ("=a", "=a"),
            ("a=b=c", "a=b=c"),
            ("%61=%C3%a9", "a=é"),
            ("a%3Db=c%26d", "a=b=c&d"),
            ("a=1+2&b=1%2B2", "a=1 2 b=1+2"),
            ("z=0&i[][id]=2&i[][n]=1&i[][id]=1", "i[][id]=2 i[][n]=1 i[][id]=1 z=0"),
            ("m[b]=1&m[a]=2", "m[a]=2 m[b]=1"),
        ] {
            assert_eq!(sorted(text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn a_broken_escape_leaves_no_pairs() {
        for text in ["%", "a=%", "a=%4", "a=%4g", "%zz=1", "a=1&b=%"] {
            assert_eq!(sorted(text), None, "{text}");
        }
    }
}
