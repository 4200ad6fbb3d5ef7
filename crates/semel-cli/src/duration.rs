//! Durations as people write them (`30s`, `5m`, `1h30m`, `7d`) and as tables show them.

use semel::Retention;

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Reads a duration in ms. A number without a unit is refused because it is ambiguous.
pub(crate) fn parse_ms(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a duration; write it like 30s, 5m, 2h, 7d or 1h30m");
    let mut rest = text;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let (_, unit_ms) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*unit_ms));
        total = ms.and_then(|ms| total.checked_add(ms)).ok_or_else(wrong)?;
        rest = after;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

/// Reads a retention, how long an outcome is kept: a duration, or `forever`.
pub(crate) fn parse_retention(text: &str) -> Result<Retention, String> {
    match text {
        "forever" => Ok(Retention::Forever),
        _ => match parse_ms(text)? {
            0 => Err("a retention of zero would let every retry run again; use at least 1ms".to_owned()),
            ms => Ok(Retention::Ms(ms)),
        },
    }
}

/// The two largest units: `3m12s`, `7d0h`. Enough for a person, and it stays narrow in a table.
pub(crate) fn shown(ms: u64) -> String {
    let s = ms / 1_000;
    match s {
        0..60 => format!("{s}s"),
        60..3_600 => format!("{}m{}s", s / 60, s % 60),
        3_600..86_400 => format!("{}h{}m", s / 3_600, s % 3_600 / 60),
        _ => format!("{}d{}h", s / 86_400, s % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_write_them() {
        for (text, ms) in [
            ("0s", 0),
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
            ("1h30m", 5_400_000),
            ("18446744073709551615ms", u64::MAX),
        ] {
            assert_eq!(parse_ms(text), Ok(ms), "{text}");
        }
        for bad in
            ["", "5", "m", "5 m", "-5m", "5min", "5M", "1.5h", "99999999999999999999d", "300000000000d"]
        {
            assert!(parse_ms(bad).unwrap_err().contains("is not a duration"), "{bad}");
        }
    }

    #[test]
    fn retentions_are_never_nothing() {
        assert_eq!(parse_retention("forever"), Ok(Retention::Forever));
        assert_eq!(parse_retention("7d"), Ok(Retention::Ms(604_800_000)));
        for bad in ["0s", "0ms", "never", ""] {
            assert!(parse_retention(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ages_show_their_two_largest_units() {
        for (ms, text) in [
            (0, "0s"),
            (999, "0s"),
            (59_999, "59s"),
            (192_000, "3m12s"),
            (3_600_000, "1h0m"),
            (86_399_999, "23h59m"),
            (275_400_000, "3d4h"),
        ] {
            assert_eq!(shown(ms), text);
        }
    }
}
