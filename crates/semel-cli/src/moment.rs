//! Store time as RFC 3339 text: UTC, with milliseconds.

use std::time::{SystemTime, UNIX_EPOCH};

use semel::StoreTime;

use crate::duration;

const DAY_MS: u64 = 86_400_000;

/// `2026-03-01T02:03:04.005Z`. Years beyond 9999 are shown as that year's end.
pub(crate) fn rfc3339(time: StoreTime) -> String {
    const LAST_MS: u64 = 253_402_300_799_999;
    let ms = time.0.min(LAST_MS);
    let (year, month, day) = date(ms / DAY_MS);
    let (s, ms) = (ms % DAY_MS / 1_000, ms % 1_000);
    let (hour, minute, second) = (s / 3_600, s / 60 % 60, s % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Turns days since 1970 into a date, after Howard Hinnant's `civil_from_days`: the year begins in March, so that the
/// leap day is its last day.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// The time since `at`, by this machine's clock.
pub(crate) fn age(at: SystemTime) -> String {
    let ms = SystemTime::now().duration_since(at).unwrap_or_default().as_millis();
    duration::shown(u64::try_from(ms).unwrap_or(u64::MAX))
}

pub(crate) fn when(at: SystemTime) -> String {
    let ms = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    rfc3339(StoreTime(u64::try_from(ms).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (1_772_330_584_005, "2026-03-01T02:03:04.005Z"),
            (u64::MAX, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(rfc3339(StoreTime(ms)), text);
        }
    }
}
