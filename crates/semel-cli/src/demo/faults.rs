//! Fault injection at the sample service, derived from the seed, the key and the number of calls with that key.

use std::time::Duration;

use fastrand::Rng;

/// Longest delay of an ordinary call before the charge, and after it.
const BEFORE_MS_MAX: u64 = 10;
const AFTER_MS_MAX: u64 = 5;
/// A slow call: longer than the gateway's timeout, and a client's first one.
const SLOW_MS: std::ops::Range<u64> = 350..450;
/// The lookup of one in so many keys does not work.
const NO_LOOKUP_ONE_IN: u32 = 8;

/// How a call ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// With its proper answer.
    Answered,
    /// With a 500, and nothing was charged.
    FailsBefore,
    /// With a 500, although it was charged.
    FailsAfter,
    /// Charged; then the connection is closed.
    AnswerLost,
}

/// The faults of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    /// Delay before the charge.
    pub(super) before: Duration,
    /// Delay after it.
    pub(super) after: Duration,
    pub(super) ending: Ending,
}

impl Fault {
    /// No fault.
    pub(super) const NONE: Self =
        Self { before: Duration::ZERO, after: Duration::ZERO, ending: Ending::Answered };

    /// The fault of a key's call, counted from 1. The same on both sides of the demo.
    pub(super) fn of(seed: u64, key: &str, call: u32) -> Self {
        let mut rng = random(seed ^ u64::from(call).wrapping_mul(0x9E37_79B9_7F4A_7C15), key);
        let before = Duration::from_millis(rng.u64(1..=BEFORE_MS_MAX));
        let after = Duration::from_millis(rng.u64(1..=AFTER_MS_MAX));
        let slow = Duration::from_millis(rng.u64(SLOW_MS));
        let plain = Self { before, after, ending: Ending::Answered };
        match rng.u32(..100) {
            0..4 => Self { ending: Ending::FailsBefore, ..plain },
            4..6 => Self { ending: Ending::FailsAfter, ..plain },
            6..10 => Self { ending: Ending::AnswerLost, ..plain },
            10..12 => Self { before: slow, ..plain },
            12..14 => Self { after: slow, ..plain },
            _ => plain,
        }
    }
}

/// Whether the lookup of this key always fails, so that a person has to decide.
pub(super) fn lookup_is_broken(seed: u64, key: &str) -> bool {
    random(!seed, key).u32(..NO_LOOKUP_ONE_IN) == 0
}

/// FNV-1a: the standard library's hashes may differ from one release to the next.
fn random(seed: u64, key: &str) -> Rng {
    let hash = key.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    Rng::with_seed(seed ^ hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_goes_wrong_at_times_and_most_goes_well() {
        let faults: Vec<_> = (0..1_000).map(|n| Fault::of(7, &format!("intent-{n:06}"), 1)).collect();
        let count = |ending| faults.iter().filter(|fault| fault.ending == ending).count();
        for (ending, least, most) in [
            (Ending::Answered, 850, 950),
            (Ending::FailsBefore, 20, 70),
            (Ending::FailsAfter, 5, 40),
            (Ending::AnswerLost, 20, 70),
        ] {
            assert!((least..most).contains(&count(ending)), "{ending:?}: {}", count(ending));
        }
        assert_eq!(Fault::of(7, "intent-000001", 1), faults[1]);
        let broken = (0..1_000).filter(|n| lookup_is_broken(7, &format!("intent-{n:06}"))).count();
        assert!((80..180).contains(&broken), "{broken}");
    }
}
