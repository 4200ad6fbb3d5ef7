//! What holds for a step: what protects its effect, and its bounds.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::intent::policy::Effect;

/// Longest name of a step, a saga or a signal, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// What protects a step's effect, and its bounds.
///
/// ```
/// use std::time::Duration;
/// use semel::saga::StepSpec;
///
/// let charge = StepSpec::keyed("charge").safe_for(Duration::from_secs(24 * 3600)).timeout(Duration::from_secs(10));
/// assert_eq!(charge.name, "charge");
/// ```
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct StepSpec {
    /// Its name in the journal. It must not change while sagas with it are under way.
    pub name: &'static str,
    /// What protects it.
    pub effect: Effect,
    /// What protects its undo: the same, unless it says otherwise.
    pub undo_effect: Effect,
    /// How long one call may take. Then it is dropped, and its result is unknown.
    pub timeout: Duration,
    /// How long after the timeout a call may still arrive at the participant: until then "not found" proves nothing.
    pub settle: Duration,
    /// How long the participant remembers our key (guard expiry). Beyond it nothing is tried again.
    pub safe_for: Option<Duration>,
    /// How long before that no attempt begins any more, besides the timeout.
    pub safe_margin: Duration,
    /// Attempts whose failure is known to have had no effect, or that the key protects.
    pub attempts_max: u32,
    /// Lookups that find out nothing, until a person has to.
    pub lookups_max: u32,
    /// Calls of this kind of step at once in a process, its undo and its lookup included; `None`: half of
    /// [`SagaOptions::running_max`](super::SagaOptions::running_max). More wait and take no place meanwhile, so that a
    /// participant that hangs does not hold up other sagas.
    pub concurrent_max: Option<u32>,
    /// Whether [`look_up`](super::SagaStep::look_up) finds out what happened.
    pub has_lookup: bool,
}

/// Max attempts of one step.
pub const ATTEMPTS_MAX: u32 = 16;

const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(60)).jitter(0.2);
const LOOKUP: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(600)).jitter(0.2);

impl StepSpec {
    fn new(name: &'static str, effect: Effect) -> Self {
        Self {
            name,
            effect,
            undo_effect: effect,
            timeout: Duration::from_secs(10),
            settle: Duration::from_secs(10),
            safe_for: None,
            safe_margin: Duration::from_secs(5),
            attempts_max: ATTEMPTS_MAX,
            lookups_max: 100,
            concurrent_max: None,
            has_lookup: false,
        }
    }

    /// Rows and journal are one commit.
    pub fn atomic(name: &'static str) -> Self {
        Self::new(name, Effect::Atomic)
    }

    /// The participant honours our key: calling again with it is safe.
    pub fn keyed(name: &'static str) -> Self {
        Self::new(name, Effect::Keyed)
    }

    /// Nothing else protects it: a call whose result is unknown is never repeated.
    pub fn opaque(name: &'static str) -> Self {
        Self::new(name, Effect::Opaque)
    }

    /// The participant remembers our key for this long from the first attempt on.
    pub fn safe_for(self, safe_for: Duration) -> Self {
        Self { safe_for: Some(safe_for), ..self }
    }

    /// How long one call may take.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// How long after the timeout a call may still arrive.
    pub fn settle(self, settle: Duration) -> Self {
        Self { settle, ..self }
    }

    /// Max attempts.
    pub fn attempts_max(self, attempts_max: u32) -> Self {
        Self { attempts_max: attempts_max.max(1), ..self }
    }

    /// Max calls of this kind of step at once in a process.
    pub fn concurrent_max(self, concurrent_max: u32) -> Self {
        Self { concurrent_max: Some(concurrent_max.max(1)), ..self }
    }

    /// What protects the undo, where that differs.
    pub fn undo_effect(self, undo_effect: Effect) -> Self {
        Self { undo_effect, ..self }
    }

    /// The step has a lookup.
    pub fn with_lookup(self) -> Self {
        Self { has_lookup: true, ..self }
    }

    /// The pause before retry number `attempt`, counted from 0.
    pub(super) fn backoff(&self, attempt: u32) -> Duration {
        RETRY.bound(attempt)
    }

    pub(super) fn lookup_backoff(&self, lookup: u32) -> Duration {
        LOOKUP.bound(lookup)
    }
}

/// Whether a name may stand in a journal: 1 to [`NAME_BYTES_MAX`] printable ASCII characters without `#` and `/`.
pub(super) fn is_name(name: &str) -> bool {
    let printable = name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#' && byte != b'/');
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && printable
}
