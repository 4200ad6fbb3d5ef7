//! What the guard said, as a consumer understands it. Pure.

use crate::guard::{Answer, GuardError};
use crate::inbox::consumer::Failed;
use crate::intent::identity::IntentId;
use crate::intent::outcome::Verdict;

/// What became of a message whose work the guard ran, or did not run. `given`: how the work failed, where it ran.
pub(super) fn told(
    id: IntentId,
    ran: Result<(Answer, Option<Option<Failed>>), GuardError>,
) -> Result<(), Failed> {
    let (answer, given) = ran.map_err(refused)?;
    match given.flatten() {
        Some(failed) if answer.verdict == Verdict::Uncertain => Err(in_doubt(id, &failed.to_string())),
        Some(failed) => Err(failed),
        // The source hears of it when the store has it: else a crash now would repeat what is done.
        None if !answer.stored => Err(not_recorded()),
        None => Ok(()),
    }
}

/// Why nothing was run, or it is not known how it ended.
pub(super) fn refused(error: GuardError) -> Failed {
    match error {
        GuardError::Mismatch => mismatch(),
        GuardError::InFlight { retry_after } => {
            Failed::later("somebody else has this message, or had it and died; it waits for the lease")
                .after(retry_after)
        }
        GuardError::Uncertain { settles_in: Some(settles_in), .. } => Failed::later(error).after(settles_in),
        GuardError::Uncertain { id, settles_in: None } => in_doubt(id, "whoever had it before did not say"),
        GuardError::Panicked { verdict: Verdict::Uncertain }
        | GuardError::TimedOut { verdict: Verdict::Uncertain, .. } => Failed::poison(error),
        GuardError::Panicked { .. } | GuardError::TimedOut { .. } => Failed::new(error),
        GuardError::StoreUnavailable(_)
        | GuardError::NotRebuilt { .. }
        | GuardError::Busy { .. }
        // The store could not be reached for a while; a lookup will find out what happened.
        | GuardError::ClaimLost { .. }
        | GuardError::Draining => Failed::later(error),
        GuardError::KeyExpired | GuardError::KeyFromFuture | GuardError::KeyNotTimeOrdered => {
            Failed::poison(error)
        }
    }
}

fn in_doubt(id: IntentId, why: &str) -> Failed {
    Failed::poison(format!(
        "whether intent {id} happened is not known ({why}); find out, and say so with `semel resolve`"
    ))
}

pub(super) fn mismatch() -> Failed {
    Failed::poison(
        "a message with this id and another payload was handled before; give each message an id of its own",
    )
}

pub(super) fn not_recorded() -> Failed {
    Failed::later("it is done, and the store has not recorded it; the source is not told before that")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Ended;
    use crate::inbox::consumer::HandlerErrorKind;
    use crate::intent::outcome::Outcome;
    use crate::store::{ErrorKind, Fate, StoreError};
    use std::time::Duration;

    fn answer(verdict: Verdict, stored: bool) -> Answer {
        let (ended, outcome) = (Ended::Unknown, Outcome::new(0, ""));
        Answer { outcome, verdict, ended, replayed: false, stored, guarded: true }
    }

    fn kind(ran: Result<(Answer, Option<Option<Failed>>), GuardError>) -> Option<HandlerErrorKind> {
        told(IntentId::from_bytes([7; 32]), ran).err().map(|failed| failed.kind())
    }

    #[test]
    fn done_is_what_is_recorded_and_nothing_else() {
        assert_eq!(kind(Ok((answer(Verdict::Completed, true), Some(None)))), None);
        assert_eq!(kind(Ok((answer(Verdict::Completed, true), None))), None, "a replay");
        assert_eq!(kind(Ok((answer(Verdict::FailedFinal, true), None))), None, "decided by a person");
        assert_eq!(kind(Ok((answer(Verdict::Completed, false), Some(None)))), Some(HandlerErrorKind::Later));
        let failed = || Some(Some(Failed::new("no")));
        assert_eq!(
            kind(Ok((answer(Verdict::FailedRetryable, true), failed()))),
            Some(HandlerErrorKind::Message)
        );
        assert_eq!(kind(Ok((answer(Verdict::Uncertain, true), failed()))), Some(HandlerErrorKind::Poison));
    }

    #[test]
    fn whose_fault_it_is() {
        let id = IntentId::from_bytes([7; 32]);
        let down = StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, "down");
        for (error, wanted) in [
            (GuardError::Mismatch, HandlerErrorKind::Poison),
            (GuardError::InFlight { retry_after: Duration::from_secs(1) }, HandlerErrorKind::Later),
            (GuardError::Uncertain { id, settles_in: None }, HandlerErrorKind::Poison),
            (GuardError::Uncertain { id, settles_in: Some(Duration::from_secs(9)) }, HandlerErrorKind::Later),
            (GuardError::StoreUnavailable(down), HandlerErrorKind::Later),
            (GuardError::Draining, HandlerErrorKind::Later),
            (GuardError::Panicked { verdict: Verdict::Uncertain }, HandlerErrorKind::Poison),
            (GuardError::Panicked { verdict: Verdict::FailedRetryable }, HandlerErrorKind::Message),
        ] {
            let told = format!("{error}");
            assert_eq!(kind(Err(error)), Some(wanted), "{told}");
        }
    }
}
