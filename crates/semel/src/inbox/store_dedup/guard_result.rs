//! What the guard said, as a consumer understands it. Pure.

use crate::guard::{Answer, GuardError};
use crate::inbox::consumer::HandlerError;
use crate::intent::identity::IntentId;
use crate::intent::outcome::Verdict;

/// What became of a message whose work the guard ran, or did not run. `given`: how the work failed, where it ran.
pub(super) fn told(
    id: IntentId,
    ran: Result<(Answer, Option<Option<HandlerError>>), GuardError>,
) -> Result<(), HandlerError> {
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
pub(super) fn refused(error: GuardError) -> HandlerError {
    match error {
        GuardError::Mismatch => mismatch(),
        GuardError::InFlight { retry_after } => {
            HandlerError::transient("somebody else has this message, or had it and died; it waits for the lease")
                .after(retry_after)
        }
        GuardError::Uncertain { settles_in: Some(settles_in), .. } => HandlerError::transient(error).after(settles_in),
        GuardError::Uncertain { id, settles_in: None } => in_doubt(id, "whoever had it before did not say"),
        GuardError::Panicked { verdict: Verdict::Uncertain }
        | GuardError::TimedOut { verdict: Verdict::Uncertain, .. } => HandlerError::permanent(error),
        GuardError::Panicked { .. } | GuardError::TimedOut { .. } => HandlerError::retry(error),
        GuardError::StoreUnavailable(_)
        | GuardError::NotRebuilt { .. }
        | GuardError::Busy { .. }
        // The store could not be reached for a while; a lookup will find out what happened.
        | GuardError::ClaimLost { .. }
        | GuardError::Draining => HandlerError::transient(error),
        GuardError::KeyExpired | GuardError::KeyFromFuture | GuardError::KeyNotTimeOrdered => {
            HandlerError::permanent(error)
        }
    }
}

fn in_doubt(id: IntentId, why: &str) -> HandlerError {
    HandlerError::permanent(format!(
        "whether intent {id} happened is not known ({why}); find out, and say so with `semel resolve`"
    ))
}

pub(super) fn mismatch() -> HandlerError {
    HandlerError::permanent(
        "a message with this id and another payload was handled before; give each message an id of its own",
    )
}

pub(super) fn not_recorded() -> HandlerError {
    HandlerError::transient(
        "it is done, and the store has not recorded it; the source is not told before that",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::WorkResult;
    use crate::inbox::consumer::HandlerErrorKind;
    use crate::intent::outcome::Outcome;
    use crate::store::{ErrorKind, Fate, StoreError};
    use std::time::Duration;

    fn answer(verdict: Verdict, stored: bool) -> Answer {
        let (ended, outcome) = (WorkResult::Unknown, Outcome::new(0, ""));
        Answer { outcome, verdict, ended, replayed: false, stored, guarded: true }
    }

    fn kind(ran: Result<(Answer, Option<Option<HandlerError>>), GuardError>) -> Option<HandlerErrorKind> {
        told(IntentId::from_bytes([7; 32]), ran).err().map(|failed| failed.kind())
    }

    #[test]
    fn done_is_what_is_recorded_and_nothing_else() {
        assert_eq!(kind(Ok((answer(Verdict::Completed, true), Some(None)))), None);
        assert_eq!(kind(Ok((answer(Verdict::Completed, true), None))), None, "a replay");
        assert_eq!(kind(Ok((answer(Verdict::FailedFinal, true), None))), None, "decided by a person");
        assert_eq!(
            kind(Ok((answer(Verdict::Completed, false), Some(None)))),
            Some(HandlerErrorKind::Transient)
        );
        let failed = || Some(Some(HandlerError::retry("no")));
        assert_eq!(
            kind(Ok((answer(Verdict::FailedRetryable, true), failed()))),
            Some(HandlerErrorKind::Retry)
        );
        assert_eq!(kind(Ok((answer(Verdict::Uncertain, true), failed()))), Some(HandlerErrorKind::Permanent));
    }

    #[test]
    fn whose_fault_it_is() {
        let id = IntentId::from_bytes([7; 32]);
        let down = StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, "down");
        for (error, wanted) in [
            (GuardError::Mismatch, HandlerErrorKind::Permanent),
            (GuardError::InFlight { retry_after: Duration::from_secs(1) }, HandlerErrorKind::Transient),
            (GuardError::Uncertain { id, settles_in: None }, HandlerErrorKind::Permanent),
            (
                GuardError::Uncertain { id, settles_in: Some(Duration::from_secs(9)) },
                HandlerErrorKind::Transient,
            ),
            (GuardError::StoreUnavailable(down), HandlerErrorKind::Transient),
            (GuardError::Draining, HandlerErrorKind::Transient),
            (GuardError::Panicked { verdict: Verdict::Uncertain }, HandlerErrorKind::Permanent),
            (GuardError::Panicked { verdict: Verdict::FailedRetryable }, HandlerErrorKind::Retry),
        ] {
            let told = format!("{error}");
            assert_eq!(kind(Err(error)), Some(wanted), "{told}");
        }
    }
}
