//! Durations as people write them.

use std::time::Duration;

const SECONDS_MAX: u64 = 24 * 60 * 60;

/// Reads `90s`, `10m` or `2h`: a second to a day.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("invalid duration {text:?}: use 1s to 24h, such as 90s, 10m or 2h");
    let (number, seconds) = [("s", 1), ("m", 60), ("h", 3_600)]
        .into_iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)))
        .ok_or_else(wrong)?;
    let total =
        number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds)).ok_or_else(wrong)?;
    if (1..=SECONDS_MAX).contains(&total) { Ok(Duration::from_secs(total)) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_bounded() {
        for (text, seconds) in [("1s", 1), ("90s", 90), ("10m", 600), ("24h", 86_400)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)));
        }
        for text in ["", "s", "0s", "25h", "60", "1.5s", "-1s", "99999999999999999999s"] {
            assert!(parse(text).unwrap_err().contains("90s"), "{text}");
        }
    }
}
