//! The plan of what is sent, in which order, with which random choices: all derived from the seed.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;

/// The longest a client waits before it hangs up.
const HANGS_UP_MS_MAX: u64 = 20;
/// One in so many clients hangs up, and one in so many uses a key again for something else.
const HANGS_UP_ONE_IN: u32 = 10;
const REUSES_ONE_IN: u32 = 20;
/// One in so many duplicates is sent at the same time as the first.
const AT_ONCE_ONE_IN: u32 = 3;

/// One payment to make. Its text has a fixed width, so that none is a prefix of another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct IntentNo(pub(super) u32);

impl IntentNo {
    /// The amount in cents: a different one for each, so that a mixed-up answer is detected.
    pub(super) fn amount(self) -> u64 {
        1_000 + u64::from(self.0)
    }
}

impl fmt::Display for IntentNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "intent-{:06}", self.0)
    }
}

impl FromStr for IntentNo {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number = text.strip_prefix("intent-").and_then(|digits| digits.parse().ok()).map(Self);
        number.filter(|number| number.to_string() == text).ok_or(())
    }
}

/// One send of an intent. Its number seeds its random choices, independently of concurrent sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Send {
    pub(super) number: u32,
    pub(super) intent: IntentNo,
}

/// The random choices of one send.
pub(super) struct Luck {
    /// The client hangs up after this long, and retries.
    pub(super) hangs_up: Option<Duration>,
    /// Afterwards the client uses the key again, for another amount.
    pub(super) reuses: bool,
}

impl Luck {
    pub(super) fn of(seed: u64, send: Send) -> Self {
        let mut rng = Rng::with_seed(seed ^ u64::from(send.number).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let patience = Duration::from_millis(rng.u64(1..=HANGS_UP_MS_MAX));
        let hangs_up = (rng.u32(..HANGS_UP_ONE_IN) == 0).then_some(patience);
        Self { hangs_up, reuses: rng.u32(..REUSES_ONE_IN) == 0 }
    }
}

/// All sends: every intent at least once, and duplicates next to the first or anywhere.
pub(super) fn sends(seed: u64, intents: u32, sends: u32) -> Vec<Send> {
    let mut rng = Rng::with_seed(seed);
    let first: Vec<u32> = (0..intents).map(|_| rng.u32(..)).collect();
    let mut all: Vec<(u32, u32)> = first.iter().copied().zip(0..).collect();
    for _ in intents..sends {
        let intent = rng.u32(..intents);
        let at_once = rng.u32(..AT_ONCE_ONE_IN) == 0;
        let order = if at_once { first.get(intent as usize).copied().unwrap_or(0) } else { rng.u32(..) };
        all.push((order, intent));
    }
    all.sort_unstable();
    (0..).zip(all).map(|(number, (_, intent))| Send { number, intent: IntentNo(intent) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_intent_is_sent_and_the_seed_says_how() {
        let all = sends(7, 100, 300);
        assert_eq!(all.len(), 300);
        for intent in 0..100 {
            assert!(all.iter().any(|send| send.intent == IntentNo(intent)), "{intent}");
        }
        assert_eq!(all, sends(7, 100, 300));
        assert_ne!(all, sends(8, 100, 300));
        let at_once = all.windows(2).filter(|pair| pair[0].intent == pair[1].intent).count();
        assert!((30..150).contains(&at_once), "{at_once}");
        let hung_up = all.iter().filter(|send| Luck::of(7, **send).hangs_up.is_some()).count();
        assert!((10..60).contains(&hung_up), "{hung_up}");
    }

    #[test]
    fn names_read_back_and_parts_of_names_do_not() {
        assert_eq!("intent-000042".parse(), Ok(IntentNo(42)));
        for bad in ["", "intent-", "intent-42", "intent-0000420", "intent-00004x"] {
            assert!(bad.parse::<IntentNo>().is_err(), "{bad}");
        }
    }
}
