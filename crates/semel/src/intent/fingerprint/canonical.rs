//! JSON in a canonical form that ignores its spelling and nothing else.
//!
//! The grammar is RFC 8259's, strictly. A general JSON value would not do: it merges duplicate keys and turns
//! numbers into doubles, and both make one request of two. RFC 8785 writes doubles too. A fingerprint is
//! not for interchange, so the form need only be exact and quick.
//!
//! | JSON | form |
//! |---|---|
//! | `null`, `true`, `false` | `0`, `t`, `f` |
//! | number | see [`super::decimal`] |
//! | string | `"`, decoded UTF-8, the byte FF |
//! | array | `[`, elements, `]` |
//! | object | `{`, for each member its key as a string and its value, `}`; sorted by key |
//!
//! Each form marks its own end (FF occurs in no UTF-8 text), so two values never share a form.

use std::cell::Cell;
use std::mem;

use super::select::{Cursor, Found, Selection, Step};
use super::{decimal, string};

/// Space reserved beforehand for sorting objects, at most.
const ORDER_BYTES: usize = 4 << 10;

/// Buffers kept from one form to the next, at most.
const ROOM_BYTES_MAX: usize = 16 << 10;
const ROOM_MEMBERS_MAX: usize = 256;

/// Ends a string. No byte of UTF-8 text is FF.
const STRING_END: u8 = 0xFF;

/// Why a text has no canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CanonicalError {
    /// Not JSON; a byte order mark is not JSON either.
    #[error("it is not JSON")]
    Syntax,
    /// An object names a member twice, and readers disagree about which one counts.
    #[error("an object has a duplicate key")]
    DuplicateKey,
    /// Arrays and objects nested deeper than the recipe allows.
    #[error("it is nested too deep; raise the recipe's depth_max")]
    Depth,
    /// An escaped half of a surrogate pair: no Unicode text.
    #[error("a string escapes half a surrogate pair")]
    Surrogate,
    /// A number whose power of ten needs more than 64 bits.
    #[error("a number's exponent does not fit 64 bits")]
    Exponent,
}

/// A canonical form, and whether a path of the selection chose something in it.
pub(super) struct Canonical {
    pub(super) bytes: Vec<u8>,
    pub(super) chosen: bool,
    members: Vec<Member>,
}

thread_local! {
    /// Buffers for the next form: each request needs some, and only for a moment.
    static ROOM: Cell<(Vec<u8>, Vec<Member>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

impl Drop for Canonical {
    fn drop(&mut self) {
        let (mut bytes, mut members) = (mem::take(&mut self.bytes), mem::take(&mut self.members));
        if bytes.capacity() <= ROOM_BYTES_MAX && members.capacity() <= ROOM_MEMBERS_MAX {
            bytes.clear();
            members.clear();
            // A thread that ends keeps no buffers.
            let _ = ROOM.try_with(|room| room.set((bytes, members)));
        }
    }
}

/// The canonical form of the fields of `text` that `selection` keeps.
pub(super) fn canonicalise(
    text: &[u8],
    selection: &Selection,
    depth_max: usize,
) -> Result<Canonical, CanonicalError> {
    // Checked once and in bulk; afterwards strings can be copied as they are.
    std::str::from_utf8(text).map_err(|_| CanonicalError::Syntax)?;
    let (mut out, members) = ROOM.try_with(Cell::take).unwrap_or_default();
    // Space to sort an object behind itself, where it is not much.
    out.reserve(text.len() + text.len().min(ORDER_BYTES) + 16);
    let mut walk = Walk { text, at: 0, out, members, selection, chosen: false };
    walk.value(selection.root(), depth_max)?;
    walk.space();
    if walk.at != text.len() {
        return Err(CanonicalError::Syntax);
    }
    Ok(Canonical { bytes: walk.out, chosen: walk.chosen, members: walk.members })
}

struct Walk<'a> {
    text: &'a [u8],
    at: usize,
    out: Vec<u8>,
    /// Members of the objects that are open, innermost last.
    members: Vec<Member>,
    selection: &'a Selection,
    chosen: bool,
}

/// A member in the output: its key in quotes from `start` to `key_end`, its value from there to `end`.
#[derive(Clone, Copy)]
struct Member {
    start: usize,
    key_end: usize,
    end: usize,
    kept: bool,
}

impl Member {
    fn key<'a>(&self, out: &'a [u8]) -> &'a [u8] {
        &out[self.start + 1..self.key_end - 1]
    }
}

impl Walk<'_> {
    /// Recursion is safe here: `depth_left` begins at no more than `DEPTH_MAX_CEILING`.
    fn value(&mut self, cursor: Cursor, depth_left: usize) -> Result<(), CanonicalError> {
        self.space();
        match self.peek() {
            Some(b'"') => self.string(),
            Some(b'{') => self.object(cursor, depth_left.checked_sub(1).ok_or(CanonicalError::Depth)?),
            Some(b'[') => self.array(cursor, depth_left.checked_sub(1).ok_or(CanonicalError::Depth)?),
            Some(b'-' | b'0'..=b'9') => {
                self.at += decimal::canonicalise(&self.text[self.at..], &mut self.out)?;
                Ok(())
            }
            Some(b't') => self.literal(b"true", b't'),
            Some(b'f') => self.literal(b"false", b'f'),
            Some(b'n') => self.literal(b"null", b'0'),
            _ => Err(CanonicalError::Syntax),
        }
    }

    fn array(&mut self, cursor: Cursor, depth_left: usize) -> Result<(), CanonicalError> {
        self.at += 1;
        self.out.push(b'[');
        self.space();
        if !self.take(b']') {
            for index in 0.. {
                let start = self.out.len();
                let found = self.selection.step(cursor, Step::Index(index));
                if !self.found(found, depth_left)? {
                    self.out.truncate(start);
                }
                self.space();
                if self.take(b']') {
                    break;
                }
                self.expect(b',')?;
            }
        }
        self.out.push(b']');
        Ok(())
    }

    fn object(&mut self, cursor: Cursor, depth_left: usize) -> Result<(), CanonicalError> {
        self.at += 1;
        self.out.push(b'{');
        let first = self.members.len();
        let mut in_order = true;
        self.space();
        if !self.take(b'}') {
            loop {
                in_order &= self.member(cursor, depth_left, first)?;
                self.space();
                if self.take(b'}') {
                    break;
                }
                self.expect(b',')?;
                self.space();
            }
        }
        if !in_order {
            self.sort(first)?;
        }
        self.members.truncate(first);
        self.out.push(b'}');
        Ok(())
    }

    /// Reads a member; returns whether the object's form is still right as it stands.
    fn member(&mut self, cursor: Cursor, depth_left: usize, first: usize) -> Result<bool, CanonicalError> {
        let start = self.out.len();
        self.string()?;
        let key_end = self.out.len();
        self.space();
        self.expect(b':')?;

        let found = self.selection.step(cursor, Step::Key(&self.out[start + 1..key_end - 1]));
        let kept = self.found(found, depth_left)?;
        if !kept {
            // The key stays until the object ends: a dropped field must not be a duplicate either.
            self.out.truncate(key_end);
        }
        let member = Member { start, key_end, end: self.out.len(), kept };
        let follows = match self.members[first..].last() {
            Some(previous) => previous.key(&self.out) < member.key(&self.out),
            None => true,
        };
        self.members.push(member);
        Ok(kept && follows)
    }

    /// Reads the value that was found; returns whether it counts. A dropped value is read all the same, so that its
    /// errors are noticed.
    fn found(&mut self, found: Found, depth_left: usize) -> Result<bool, CanonicalError> {
        let (cursor, kept) = match found {
            Found::Kept(cursor) => (cursor, true),
            Found::Chosen(cursor) => {
                self.chosen = true;
                (cursor, true)
            }
            Found::Dropped => (Cursor::ALL, false),
        };
        self.value(cursor, depth_left)?;
        Ok(kept)
    }

    fn sort(&mut self, first: usize) -> Result<(), CanonicalError> {
        let out = &self.out;
        let key = |member: &Member| member.key(out);
        let members = &mut self.members[first..];
        let Some(begin) = members.first().map(|member| member.start) else { return Ok(()) };
        members.sort_unstable_by(|a, b| key(a).cmp(key(b)));
        if members.windows(2).any(|pair| key(&pair[0]) == key(&pair[1])) {
            return Err(CanonicalError::DuplicateKey);
        }
        // Sorted behind itself, then moved into place.
        let end = self.out.len();
        for member in members.iter().filter(|member| member.kept) {
            self.out.extend_from_within(member.start..member.end);
        }
        self.out.copy_within(end.., begin);
        self.out.truncate(begin + self.out.len() - end);
        Ok(())
    }

    fn string(&mut self) -> Result<(), CanonicalError> {
        self.expect(b'"')?;
        self.out.push(b'"');
        self.at += string::decode(&self.text[self.at..], &mut self.out)?;
        self.out.push(STRING_END);
        Ok(())
    }

    fn literal(&mut self, word: &[u8], form: u8) -> Result<(), CanonicalError> {
        if !self.text[self.at..].starts_with(word) {
            return Err(CanonicalError::Syntax);
        }
        self.at += word.len();
        self.out.push(form);
        Ok(())
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn expect(&mut self, byte: u8) -> Result<(), CanonicalError> {
        if self.take(byte) { Ok(()) } else { Err(CanonicalError::Syntax) }
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intent::fingerprint::DEPTH_MAX_CEILING;

    fn form(text: &str) -> Result<String, CanonicalError> {
        pick(text, &[], &[])
    }

    /// The form with `'` for the end of a string, to be read by eye.
    fn pick(text: &str, included: &[&str], excluded: &[&str]) -> Result<String, CanonicalError> {
        let owned = |paths: &[&str]| paths.iter().map(|&path| path.to_owned()).collect::<Vec<_>>();
        let selection = Selection::new(&owned(included), &owned(excluded)).unwrap();
        let form = canonicalise(text.as_bytes(), &selection, 4)?.bytes.clone();
        let readable = form.iter().map(|&byte| if byte == STRING_END { b'\'' } else { byte }).collect();
        Ok(String::from_utf8(readable).unwrap())
    }

    #[test]
    fn the_form_forgets_the_spelling() {
        for (form_of, spellings) in [
            ("0", &["null", " null\n"][..]),
            ("[tf0]", &["[true,false,null]", "[ true , false\t,\r\nnull ]"]),
            ("[]", &["[]", "[ ]"]),
            ("{}", &["{}", "{ }"]),
            (r#""a/b'"#, &[r#""a/b""#, r#""a\/b""#, r#""\u0061/b""#]),
            (
                r#"{"a'+1;"b'+2;}"#,
                &[r#"{"a":1,"b":2}"#, r#"{"b":2.0,"a":1}"#, r#" { "\u0062" : 2 , "a":1e0 } "#],
            ),
            (
                r#"{"'+1;"a'+2;"a!'+3;"é'+4;}"#,
                &[r#"{"é":4,"a!":3,"a":2,"":1}"#, r#"{"":1,"a":2,"a!":3,"\u00e9":4}"#],
            ),
            (r#"{"a'{"x'+1;"y'+2;}"b'[]}"#, &[r#"{"b":[],"a":{"y":2,"x":1}}"#]),
        ] {
            for spelling in spellings {
                assert_eq!(form(spelling).as_deref(), Ok(form_of), "{spelling}");
            }
        }
    }

    #[test]
    fn values_that_differ_have_forms_that_differ() {
        let texts = [
            "null",
            "false",
            "true",
            "0",
            "1",
            "-1",
            "\"\"",
            "\"0\"",
            "\"1\"",
            "\"null\"",
            "[]",
            "{}",
            "[null]",
            "[[]]",
            "[{}]",
            "[0]",
            "[1,2]",
            "[2,1]",
            "[12]",
            "[[1],2]",
            "[[1,2]]",
            "[\"a\",\"b\"]",
            "[\"ab\"]",
            "[\"a,b\"]",
            "{\"a\":null}",
            "{\"a\":{}}",
            "{\"a\":\"\"}",
            "{\"a\":\"b\"}",
            "{\"a\":1,\"b\":2}",
            "{\"a\":{\"b\":1}}",
            "{\"a\":{},\"b\":1}",
            "{\"\":{}}",
            "{\"}\":1}",
            "[\"}\"]",
            "\"\u{e9}\"",
            "\"e\u{301}\"",
        ];
        for (i, a) in texts.iter().enumerate() {
            for b in &texts[i + 1..] {
                assert_ne!(form(a), form(b), "{a} and {b}");
            }
        }
    }

    #[test]
    fn what_has_no_form_is_refused() {
        use CanonicalError::{Depth, DuplicateKey, Exponent, Surrogate, Syntax};
        for (text, refusal) in [
            (r#"{"a":1,"a":1}"#, DuplicateKey),
            (r#"{"a":1,"b":2,"\u0061":3}"#, DuplicateKey),
            (r#"{"b":1,"a":2,"b":3}"#, DuplicateKey),
            (r#"[{"x":{"a":1,"a":1}}]"#, DuplicateKey),
            ("[[[[[]]]]]", Depth),
            (r#"{"a":[{"b":[{}]}]}"#, Depth),
            (r#"["\ud800"]"#, Surrogate),
            ("1e9223372036854775808", Exponent),
            ("", Syntax),
            (" ", Syntax),
            ("\u{feff}1", Syntax),
            ("1 2", Syntax),
            ("nul", Syntax),
            ("True", Syntax),
            ("NaN", Syntax),
            ("+1", Syntax),
            ("01", Syntax),
            ("'a'", Syntax),
            ("[1,]", Syntax),
            ("[,1]", Syntax),
            ("[1 2]", Syntax),
            ("[", Syntax),
            ("]", Syntax),
            (r#"{"a":1,}"#, Syntax),
            (r#"{"a" 1}"#, Syntax),
            (r#"{a:1}"#, Syntax),
            (r#"{1:1}"#, Syntax),
            (r#"{"a""#, Syntax),
            ("{\"a\":1}\0", Syntax),
            ("\u{a0}1", Syntax),
        ] {
            assert_eq!(form(text), Err(refusal), "{text}");
        }
        assert!(form("[[[[]]]]").is_ok(), "four levels are within the bound");
        let latin1 = canonicalise(b"\"\xe9\"", &Selection::default(), 4);
        assert_eq!(latin1.err(), Some(CanonicalError::Syntax));
    }

    #[test]
    fn paths_decide_which_fields_count() {
        let body = r#"{"id":7,"meta":{"sent_at":"now","by":"x"},"items":[{"n":1,"t":2},{"n":3,"t":4}]}"#;
        for (included, excluded, form_of) in [
            (&[][..], &["/meta", "/items"][..], r#"{"id'+7;}"#),
            (&[], &["/meta/sent_at", "/items/*/t"], r#"{"id'+7;"items'[{"n'+1;}{"n'+3;}]"meta'{"by'"x'}}"#),
            (&[], &["/items/1", "/*/by", "/meta/sent_at"], r#"{"id'+7;"items'[{"n'+1;"t'+2;}]"meta'{}}"#),
            (&["/id"], &[], r#"{"id'+7;}"#),
            (&["/items/*/n"], &[], r#"{"items'[{"n'+1;}{"n'+3;}]}"#),
            (&["/items"], &["/items/*/t"], r#"{"items'[{"n'+1;}{"n'+3;}]}"#),
            (&["/meta/by", "/items/0"], &[], r#"{"items'[{"n'+1;"t'+2;}]"meta'{"by'"x'}}"#),
            // A value where a container was expected stays: without it, a body of the wrong shape would
            // equal one without the field.
            (&["/id/x"], &[], r#"{"id'+7;}"#),
        ] {
            assert_eq!(pick(body, included, excluded).as_deref(), Ok(form_of), "{included:?} {excluded:?}");
        }
    }

    #[test]
    fn the_deepest_body_fits_a_small_stack() {
        let levels = DEPTH_MAX_CEILING / 2;
        let text = format!("{}1{}", r#"[{"a":"#.repeat(levels), "}]".repeat(levels));
        let walk = move || canonicalise(text.as_bytes(), &Selection::default(), DEPTH_MAX_CEILING).is_ok();
        let thread = std::thread::Builder::new().stack_size(256 * 1024).spawn(walk).unwrap();
        assert!(thread.join().unwrap());
    }

    #[test]
    fn a_field_that_does_not_count_is_still_checked() {
        assert_eq!(pick(r#"{"t":1,"t":2}"#, &[], &["/t"]), Err(CanonicalError::DuplicateKey));
        assert_eq!(pick(r#"{"a":1,"t":{"x":1,"x":2}}"#, &[], &["/t"]), Err(CanonicalError::DuplicateKey));
        assert_eq!(pick(r#"{"a":1,"t":[}"#, &["/a"], &[]), Err(CanonicalError::Syntax));
        assert_eq!(pick(r#"{"t":[[[[]]]]}"#, &[], &["/t"]), Err(CanonicalError::Depth));
    }
}
