//! What is sent, in which order, with which luck: all of it from the seed.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;

/// One in so many sends goes to the worker processes.
const WORKERS_SHARE: usize = 4;
/// Slowest way of a call to the world outside, and of the answer back.
const THERE_MS_MAX: u64 = 20;
const BACK_MS_MAX: u64 = 5;
/// The most patient caller of those that hang up.
const PATIENCE_MS_MAX: u64 = 20;

/// One of the things to be done. Its text has a fixed width, so that half of it is not another's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct IntentNo(pub(super) u32);

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

/// One time an intent is sent. The number makes its luck its own, whatever runs beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Send {
    pub(super) number: u32,
    pub(super) intent: IntentNo,
}

/// What chance has in store for one send.
pub(super) struct Luck {
    /// The caller hangs up after this long, and calls again.
    pub(super) hangs_up: Option<Duration>,
    /// How long the call takes to reach the world outside.
    pub(super) there: Duration,
    /// And the answer back.
    pub(super) back: Duration,
}

impl Luck {
    pub(super) fn of(seed: u64, send: Send) -> Self {
        let mut rng = Rng::with_seed(seed ^ u64::from(send.number).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut ms = |max: u64| Duration::from_millis(rng.u64(1..=max));
        let (there, back) = (ms(THERE_MS_MAX), ms(BACK_MS_MAX));
        let patience = ms(PATIENCE_MS_MAX);
        let hangs_up = (rng.u32(..10) == 0).then_some(patience);
        Self { hangs_up, there, back }
    }
}

/// All sends, mixed: every intent at least once, the rest at random.
pub(super) fn sends(seed: u64, intents: u32, sends: u32) -> Vec<Send> {
    let mut rng = Rng::with_seed(seed);
    let mut all: Vec<u32> = (0..intents).collect();
    all.extend((intents..sends).map(|_| rng.u32(..intents)));
    rng.shuffle(&mut all);
    (0..).zip(all).map(|(number, intent)| Send { number, intent: IntentNo(intent) }).collect()
}

/// What this process sends, and what the worker processes do.
pub(super) fn shared_out(sends: &[Send]) -> (Vec<Send>, Vec<Send>) {
    sends.iter().partition(|send| !(send.number as usize).is_multiple_of(WORKERS_SHARE))
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
        let (ours, theirs) = shared_out(&all);
        assert_eq!((ours.len(), theirs.len()), (225, 75));
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
