//! What goes wrong at the sample service: from the seed, the key and how often that key has been there.

use std::time::Duration;

use fastrand::Rng;

/// Slowest way of an ordinary call to the charge, and of its answer back.
const THERE_MS_MAX: u64 = 10;
const BACK_MS_MAX: u64 = 5;
/// A slow one: longer than the gateway waits for an answer, and than a client does at first.
const SLOW_MS: std::ops::Range<u64> = 350..450;
/// The lookup of one in so many keys does not work.
const NO_LOOKUP_ONE_IN: u32 = 8;

/// How a call ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// With the answer that belongs to it.
    Answered,
    /// With a 500, and nothing was charged.
    FailsBefore,
    /// With a 500, although it was charged.
    FailsAfter,
    /// Charged; then the connection breaks.
    AnswerLost,
}

/// One call's fate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mischief {
    /// Before the charge.
    pub(super) there: Duration,
    /// After it.
    pub(super) back: Duration,
    pub(super) ending: Ending,
}

impl Mischief {
    /// A day on which everything works.
    pub(super) const NONE: Self =
        Self { there: Duration::ZERO, back: Duration::ZERO, ending: Ending::Answered };

    /// The fate of a key's call, counted from 1. The same on both sides of the demo.
    pub(super) fn of(seed: u64, key: &str, call: u32) -> Self {
        let mut rng = random(seed ^ u64::from(call).wrapping_mul(0x9E37_79B9_7F4A_7C15), key);
        let there = Duration::from_millis(rng.u64(1..=THERE_MS_MAX));
        let back = Duration::from_millis(rng.u64(1..=BACK_MS_MAX));
        let slow = Duration::from_millis(rng.u64(SLOW_MS));
        let plain = Self { there, back, ending: Ending::Answered };
        match rng.u32(..100) {
            0..4 => Self { ending: Ending::FailsBefore, ..plain },
            4..6 => Self { ending: Ending::FailsAfter, ..plain },
            6..10 => Self { ending: Ending::AnswerLost, ..plain },
            10..12 => Self { there: slow, ..plain },
            12..14 => Self { back: slow, ..plain },
            _ => plain,
        }
    }
}

/// Whether asking for this key comes to nothing, so that a person has to decide.
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
        let fates: Vec<_> = (0..1_000).map(|n| Mischief::of(7, &format!("intent-{n:06}"), 1)).collect();
        let count = |ending| fates.iter().filter(|fate| fate.ending == ending).count();
        for (ending, least, most) in [
            (Ending::Answered, 850, 950),
            (Ending::FailsBefore, 20, 70),
            (Ending::FailsAfter, 5, 40),
            (Ending::AnswerLost, 20, 70),
        ] {
            assert!((least..most).contains(&count(ending)), "{ending:?}: {}", count(ending));
        }
        assert_eq!(Mischief::of(7, "intent-000001", 1), fates[1]);
        let broken = (0..1_000).filter(|n| lookup_is_broken(7, &format!("intent-{n:06}"))).count();
        assert!((80..180).contains(&broken), "{broken}");
    }
}
