//! Headers with signatures, timestamps and ids: exactly one, short, and text.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::HeaderName;

use super::secrets::Signature;
use super::verifier::{VerifierError, VerifyError};

/// Longest header that is read, in bytes.
const HEADER_BYTES_MAX: usize = 4_096;
/// Seconds until the year 33658.
const TIMESTAMP_DIGITS_MAX: usize = 12;

/// A required header. Two with the same name are refused: it is not clear which one counts.
pub(super) fn only<'h>(headers: &'h HeaderMap, name: &str) -> Result<&'h str, VerifyError> {
    let mut all = headers.get_all(name).iter();
    let value = all.next().ok_or(VerifyError::Malformed("a header is missing"))?;
    if all.next().is_some() {
        return Err(VerifyError::Malformed("a header is present twice"));
    }
    let text = value.to_str().map_err(|_| VerifyError::Malformed("a header is not text"))?;
    match text.len() {
        1..=HEADER_BYTES_MAX => Ok(text),
        _ => Err(VerifyError::Malformed("a header is empty or too long")),
    }
}

/// Seconds since 1970, digits only.
pub(super) fn seconds(text: &str) -> Result<u64, VerifyError> {
    let bad = VerifyError::Malformed("a timestamp is not a number of seconds");
    let digits = (1..=TIMESTAMP_DIGITS_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    if digits { text.parse().map_err(|_| bad) } else { Err(bad) }
}

/// A signature in lower-case hexadecimal digits: only the canonical form.
pub(super) fn hex(text: &str) -> Option<Signature> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let mut signature = Signature::default();
    if pairs.len() != signature.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in signature.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(signature)
}

/// A signature in base64, with padding and no spare bits: only the canonical form.
pub(super) fn base64(text: &str) -> Option<Signature> {
    STANDARD.decode(text).ok()?.try_into().ok()
}

pub(super) fn name(text: &str) -> Result<HeaderName, VerifierError> {
    text.parse().map_err(|_| VerifierError::Header { name: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_there_once_and_short() {
        let mut headers = HeaderMap::new();
        assert!(only(&headers, "x").is_err());
        headers.insert("x", "1".parse().unwrap());
        assert_eq!(only(&headers, "x"), Ok("1"));
        headers.append("x", "1".parse().unwrap());
        assert!(only(&headers, "x").is_err(), "twice");
        for (text, good) in [
            ("".to_owned(), false),
            ("y".repeat(4_096), true),
            ("y".repeat(4_097), false),
            ("é".into(), false),
        ] {
            headers.insert("x", http::HeaderValue::from_bytes(text.as_bytes()).unwrap());
            assert_eq!(only(&headers, "x").is_ok(), good, "{} bytes", text.len());
        }
    }

    #[test]
    fn seconds_are_digits() {
        assert_eq!(seconds("1614265330"), Ok(1_614_265_330));
        assert_eq!(seconds("999999999999"), Ok(999_999_999_999));
        for bad in ["", "-1", "+1", " 1", "1.0", "1e9", "١", "9999999999999"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_signature_is_written_in_one_way() {
        let text = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        assert_eq!(hex(text).unwrap()[..3], [0x75, 0x71, 0x07]);
        for bad in
            ["", &text[1..], &text[2..], &text.to_uppercase(), &format!("{text}0"), &format!("{text}00")]
        {
            assert_eq!(hex(bad), None, "{bad}");
        }
        assert!(base64("g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=").is_some());
        for bad in [
            "",
            "AAAA",
            "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE",
            "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OF=",
            "g0hM9SsE+OTPJTGt_tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        ] {
            assert_eq!(base64(bad), None, "{bad}");
        }
    }
}
