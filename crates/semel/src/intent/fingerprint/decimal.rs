//! JSON numbers as exact decimals.
//!
//! Doubles would turn `9007199254740993` and `9007199254740992` into one request. Here a number is its sign, its
//! digits without zeros at either end, and a power of ten: `1.0`, `1` and `10e-1` are all `+1;`, and nothing is ever
//! expanded, so `1e999999999` costs what its text costs.

use super::canonical::CanonicalError;

/// Reads the number at the start of `text`, appends its canonical form to `out`, and returns its length.
///
/// The form is `+` or `-`, digits, `e` and an exponent unless that is 0, and `;`. It ends itself, so whatever
/// follows cannot be mistaken for part of it.
pub(super) fn canonicalise(text: &[u8], out: &mut Vec<u8>) -> Result<usize, CanonicalError> {
    let negative = text.first() == Some(&b'-');
    let mut at = usize::from(negative);

    let whole = digits(&text[at..]);
    if whole.is_empty() || (whole[0] == b'0' && whole.len() > 1) {
        return Err(CanonicalError::Syntax);
    }
    at += whole.len();
    if !matches!(text.get(at), Some(b'.' | b'e' | b'E')) {
        write_whole(negative, whole, out)?;
        return Ok(at);
    }

    let mut fraction: &[u8] = &[];
    if text.get(at) == Some(&b'.') {
        fraction = digits(&text[at + 1..]);
        if fraction.is_empty() {
            return Err(CanonicalError::Syntax);
        }
        at += 1 + fraction.len();
    }

    let mut exponent = Ok(0);
    if let Some(b'e' | b'E') = text.get(at) {
        at += 1;
        let below_zero = text.get(at) == Some(&b'-');
        at += usize::from(matches!(text.get(at), Some(b'+' | b'-')));
        let power = digits(&text[at..]);
        if power.is_empty() {
            return Err(CanonicalError::Syntax);
        }
        at += power.len();
        exponent = integer(power, below_zero);
    }

    write(negative, whole, fraction, exponent, out)?;
    Ok(at)
}

/// As [`write()`], for the common case.
fn write_whole(negative: bool, whole: &[u8], out: &mut Vec<u8>) -> Result<(), CanonicalError> {
    let significant = trim_end(whole);
    out.push(if negative && !significant.is_empty() { b'-' } else { b'+' });
    match whole.len() - significant.len() {
        0 => out.extend_from_slice(whole),
        // Zero is zero whatever its sign.
        _ if significant.is_empty() => out.push(b'0'),
        zeros => {
            out.extend_from_slice(significant);
            out.push(b'e');
            write_integer(i64::try_from(zeros).map_err(|_| CanonicalError::Exponent)?, out);
        }
    }
    out.push(b';');
    Ok(())
}

fn write(
    negative: bool,
    whole: &[u8],
    fraction: &[u8],
    exponent: Result<i64, CanonicalError>,
    out: &mut Vec<u8>,
) -> Result<(), CanonicalError> {
    let fraction = trim_end(fraction);
    let mut whole = trim_start(whole);
    if whole.is_empty() && fraction.is_empty() {
        // Zero is zero whatever its sign and its power of ten.
        out.extend_from_slice(b"+0;");
        return Ok(());
    }

    let shift = if fraction.is_empty() {
        let significant = trim_end(whole);
        let zeros = whole.len() - significant.len();
        whole = significant;
        i64::try_from(zeros)
    } else {
        i64::try_from(fraction.len()).map(|places| -places)
    };
    let shift = shift.map_err(|_| CanonicalError::Exponent)?;
    let exponent = exponent?.checked_add(shift).ok_or(CanonicalError::Exponent)?;

    out.push(if negative { b'-' } else { b'+' });
    out.extend_from_slice(whole);
    out.extend_from_slice(if whole.is_empty() { trim_start(fraction) } else { fraction });
    if exponent != 0 {
        out.push(b'e');
        write_integer(exponent, out);
    }
    out.push(b';');
    Ok(())
}

fn digits(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    &text[..end]
}

fn trim_start(digits: &[u8]) -> &[u8] {
    let start = digits.iter().position(|&digit| digit != b'0').unwrap_or(digits.len());
    &digits[start..]
}

fn trim_end(digits: &[u8]) -> &[u8] {
    let end = digits.iter().rposition(|&digit| digit != b'0').map_or(0, |last| last + 1);
    &digits[..end]
}

/// Counts downwards, because `i64` reaches one further below zero than above.
fn integer(digits: &[u8], below_zero: bool) -> Result<i64, CanonicalError> {
    let negated = digits
        .iter()
        .try_fold(0_i64, |sum, digit| sum.checked_mul(10)?.checked_sub(i64::from(digit - b'0')))
        .ok_or(CanonicalError::Exponent)?;
    if below_zero { Ok(negated) } else { negated.checked_neg().ok_or(CanonicalError::Exponent) }
}

/// Without `to_string`: round amounts (`1000`) are common, and each would allocate.
fn write_integer(value: i64, out: &mut Vec<u8>) {
    if value < 0 {
        out.push(b'-');
    }
    let mut rest = value.unsigned_abs();
    let mut text = [0; 20];
    let mut start = text.len();
    loop {
        start -= 1;
        text[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&text[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(text: &str) -> Result<String, CanonicalError> {
        let mut out = Vec::new();
        let length = canonicalise(text.as_bytes(), &mut out)?;
        assert_eq!(length, text.len(), "{text} was not read to its end");
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn integers_are_written_as_they_are() {
        for (value, text) in
            [(0, "0"), (7, "7"), (-7, "-7"), (1000, "1000"), (i64::MIN, "-9223372036854775808")]
        {
            let mut out = Vec::new();
            write_integer(value, &mut out);
            assert_eq!(out, text.as_bytes());
        }
    }

    #[test]
    fn spellings_of_one_number_have_one_form() {
        for (canonical, spellings) in [
            ("+0;", &["0", "-0", "0.0", "-0.000", "0e5", "0e-5", "-0.0E+7", "0e99999999999999999999"][..]),
            ("+1;", &["1", "1.0", "1.000", "10e-1", "0.1e1", "1e0", "1E-0", "100E-2", "0.001e+3", "1e00"]),
            ("-1;", &["-1", "-1.0", "-10e-1"]),
            ("+1e2;", &["100", "1e2", "100.00", "0.1e3", "1000e-1"]),
            ("+15e-1;", &["1.5", "15e-1", "1.50", "0.15e1", "150e-2"]),
            ("+5e-3;", &["0.005", "5e-3", "0.0050", "0.5e-2"]),
            ("+101e-2;", &["1.01", "1.010", "101e-2", "0.101e1"]),
            ("+9007199254740993;", &["9007199254740993", "9007199254740993.0", "9007199254740.993e3"]),
            ("+9007199254740992;", &["9007199254740992"]),
            ("+1e999999999;", &["1e999999999", "10e999999998", "0.1e1000000000"]),
            ("+1e9223372036854775807;", &["1e9223372036854775807"]),
            ("+1e-9223372036854775808;", &["1e-9223372036854775808"]),
        ] {
            for spelling in spellings {
                assert_eq!(form(spelling).as_deref(), Ok(canonical), "{spelling}");
            }
        }
    }

    #[test]
    fn an_exponent_beyond_64_bits_has_no_form() {
        for text in [
            "1e9223372036854775808",
            "10e9223372036854775807",
            "1e-9223372036854775809",
            "0.1e-9223372036854775808",
            "1e99999999999999999999999999",
        ] {
            assert_eq!(form(text), Err(CanonicalError::Exponent), "{text}");
        }
    }

    #[test]
    fn what_the_grammar_forbids_is_refused() {
        for text in
            ["", "-", "+1", "01", "-01", "00", ".5", "1.", "1.e3", "1e", "1e+", "1e-", "e5", "--1", "x"]
        {
            assert_eq!(form(text), Err(CanonicalError::Syntax), "{text}");
        }
    }

    #[test]
    fn reading_stops_at_the_end_of_the_number() {
        let mut out = Vec::new();
        assert_eq!(canonicalise(b"12,3", &mut out), Ok(2));
        assert_eq!(canonicalise(b"1.5.2", &mut out), Ok(3));
        assert_eq!(out, b"+12;+15e-1;");
    }
}
