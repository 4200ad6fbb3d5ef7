//! JSON strings as the text they stand for.

use super::canonical::CanonicalError;

/// Decodes the string whose opening quote stands before `text`, appends it to `out`, and returns its length with its
/// closing quote. `text` is UTF-8; the caller has checked.
pub(super) fn decode(text: &[u8], out: &mut Vec<u8>) -> Result<usize, CanonicalError> {
    let mut at = 0;
    loop {
        let rest = &text[at..];
        let (before, ends_it) = rest.split_at(plain(rest));
        out.extend_from_slice(before);
        at += before.len() + 1;
        match ends_it.first() {
            Some(b'"') => return Ok(at),
            Some(b'\\') => at += escape(&text[at..], out)?,
            _ => return Err(CanonicalError::Syntax),
        }
    }
}

/// How many bytes come before a quote, a backslash, a control character or the end. Checks eight at a time.
fn plain(text: &[u8]) -> usize {
    const EACH: u64 = u64::from_le_bytes([1; 8]);
    const TOP: u64 = EACH << 7;
    let (eights, rest) = text.as_chunks::<8>();
    for (n, eight) in eights.iter().enumerate() {
        let word = u64::from_le_bytes(*eight);
        let quote = word ^ (EACH * b'"' as u64);
        let backslash = word ^ (EACH * b'\\' as u64);
        // A byte that is less than what is subtracted from it borrows, and its top bit shows it. A borrow only
        // reaches the bytes behind, so the first of them is right.
        let borrows = (quote.wrapping_sub(EACH) & !quote)
            | (backslash.wrapping_sub(EACH) & !backslash)
            | (word.wrapping_sub(EACH * 0x20) & !word);
        let stops = borrows & TOP;
        if stops != 0 {
            return n * 8 + stops.trailing_zeros() as usize / 8;
        }
    }
    let is_plain = |byte: &u8| *byte != b'"' && *byte != b'\\' && *byte >= 0x20;
    let count = rest.iter().position(|byte| !is_plain(byte)).unwrap_or(rest.len());
    text.len() - rest.len() + count
}

/// Decodes what follows a backslash.
fn escape(text: &[u8], out: &mut Vec<u8>) -> Result<usize, CanonicalError> {
    let byte = match text.first() {
        Some(&byte @ (b'"' | b'\\' | b'/')) => byte,
        Some(b'b') => 0x08,
        Some(b'f') => 0x0C,
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        Some(b'u') => return Ok(1 + unicode(&text[1..], out)?),
        _ => return Err(CanonicalError::Syntax),
    };
    out.push(byte);
    Ok(1)
}

/// Decodes what follows `\u`: four hex digits, or a surrogate pair.
fn unicode(text: &[u8], out: &mut Vec<u8>) -> Result<usize, CanonicalError> {
    let unit = hex(text)?;
    let (code, length) = if (0xD800..=0xDBFF).contains(&unit) {
        let low = text[4..].strip_prefix(b"\\u").ok_or(CanonicalError::Surrogate).and_then(hex)?;
        if !(0xDC00..=0xDFFF).contains(&low) {
            return Err(CanonicalError::Surrogate);
        }
        (0x1_0000 + ((unit - 0xD800) << 10) + (low - 0xDC00), 10)
    } else {
        (unit, 4)
    };
    // The only failure left is a low half without its high one.
    let decoded = char::from_u32(code).ok_or(CanonicalError::Surrogate)?;
    out.extend_from_slice(decoded.encode_utf8(&mut [0; 4]).as_bytes());
    Ok(length)
}

fn hex(text: &[u8]) -> Result<u32, CanonicalError> {
    let digits = text.get(..4).ok_or(CanonicalError::Syntax)?;
    digits.iter().try_fold(0, |sum, &digit| {
        let value = char::from(digit).to_digit(16).ok_or(CanonicalError::Syntax)?;
        Ok(sum * 16 + value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(json: &str) -> Result<String, CanonicalError> {
        let mut out = Vec::new();
        let after_quote = json.strip_prefix('"').unwrap();
        let length = decode(after_quote.as_bytes(), &mut out)?;
        assert_eq!(length, after_quote.len(), "{json} was not read to its end");
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn eight_at_a_time_stop_where_one_at_a_time_do() {
        let stops = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
        // Every byte at every position, before and behind every other that a borrow could reach.
        for byte in 0..=u8::MAX {
            for neighbour in [0, 0x1F, b' ', b'!', b'"', b'#', b'[', b'\\', b']', 0x7F, 0x80, 0xA2, 0xFF] {
                for at in 0..19 {
                    let mut text = [b'a'; 20];
                    (text[at], text[at + 1]) = (byte, neighbour);
                    let first = text.iter().position(stops).unwrap_or(text.len());
                    assert_eq!(plain(&text), first, "{byte} before {neighbour} at {at}");
                }
            }
        }
    }

    #[test]
    fn escapes_stand_for_their_text() {
        for (json, decoded) in [
            (r#""""#, ""),
            (r#""plain""#, "plain"),
            (r#""\"\\\/\b\f\n\r\t""#, "\"\\/\u{8}\u{c}\n\r\t"),
            (r#""\u0041\u00e9\u20AC\u20ac""#, "Aé€€"),
            (r#""\u0000""#, "\0"),
            (r#""\ud83d\ude00 = 😀""#, "😀 = 😀"),
            (r#""\uD834\uDD1Ex""#, "𝄞x"),
            (r#""\uffff\ud7ff\ue000""#, "\u{ffff}\u{d7ff}\u{e000}"),
            (r#""\udbff\udfff""#, "\u{10ffff}"),
            (r#""\\u0041""#, "\\u0041"),
            ("\"\u{7f}\u{2028}\"", "\u{7f}\u{2028}"),
        ] {
            assert_eq!(text(json).as_deref(), Ok(decoded), "{json}");
        }
    }

    #[test]
    fn half_a_surrogate_pair_is_no_text() {
        for json in [
            r#""\ud800""#,
            r#""\udc00""#,
            r#""\ud800\ud800""#,
            r#""\ud800x""#,
            r#""\ud800\n""#,
            r#""\ud800\u0041""#,
            r#""\udc00\ud800""#,
        ] {
            assert_eq!(text(json), Err(CanonicalError::Surrogate), "{json}");
        }
    }

    #[test]
    fn what_the_grammar_forbids_is_refused() {
        for json in [
            "\"",
            "\"a",
            "\"\\",
            "\"\\\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u12g4\"",
            "\"\\u+123\"",
            "\"\\U0041\"",
            "\"\n\"",
            "\"\t\"",
            "\"\0\"",
            "\"\u{1f}\"",
            "\"\\ud800\\u12\"",
        ] {
            assert_eq!(text(json), Err(CanonicalError::Syntax), "{json:?}");
        }
    }
}
