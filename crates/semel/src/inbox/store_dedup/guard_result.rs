//! Maps the guard's result to a handler's. Pure.

use crate::guard::{Answer, GuardError};
use crate::inbox::consumer::HandlerError;
use crate::intent::identity::IntentId;
use crate::intent::outcome::Verdict;

/// The handler's result for a message whose work the guard ran or refused. `given`: the work's error, if it ran and
/// failed.
pub(super) fn handler_result(
    id: IntentId,
    ran: Result<(Answer, Option<Option<HandlerError>>), GuardError>,
) -> Result<(), HandlerError> {
    let (answer, given) = ran.map_err(refused)?;
    match given.flatten() {
        Some(failed) if answer.verdict == Verdict::Uncertain => Err(in_doubt(id, &failed.to_string())),
        Some(failed) => Err(failed),
        // Acked only when the store has it: otherwise a crash now would repeat the effect.
        None if !answer.stored => Err(not_recorded()),
        None => Ok(()),
    }
}

/// Why the work was not run, or why its outcome is unknown.
pub(super) fn refused(error: GuardError) -> HandlerError {
    match error {
        GuardError::Mismatch => mismatch(),
        GuardError::InFlight { retry_after } => {
            HandlerError::transient("another consumer has the lease of this message; it is retried when the lease ends")
                .after(retry_after)
        }
        GuardError::Uncertain { settles_in: Some(settles_in), .. } => HandlerError::transient(error).after(settles_in),
        GuardError::Uncertain { id, settles_in: None } => in_doubt(id, "its last attempt ended without a result"),
        GuardError::Panicked { verdict: Verdict::Uncertain }
        | GuardError::TimedOut { verdict: Verdict::Uncertain, .. } => HandlerError::permanent(error),
        GuardError::Panicked { .. } | GuardError::TimedOut { .. } => HandlerError::retry(error),
        GuardError::StoreUnavailable(_)
        | GuardError::NotRebuilt { .. }
        | GuardError::Busy { .. }
        // The store was unreachable for a while; a lookup will find out what happened.
        | GuardError::ClaimLost { .. }
        | GuardError::Draining => HandlerError::transient(error),
        GuardError::KeyExpired | GuardError::KeyFromFuture | GuardError::KeyNotTimeOrdered => {
            HandlerError::permanent(error)
        }
    }
}

fn in_doubt(id: IntentId, why: &str) -> HandlerError {
    HandlerError::permanent(format!(
        "it is not known whether intent {id} took effect ({why}); check, then decide it with `semel resolve`"
    ))
}

pub(super) fn mismatch() -> HandlerError {
    HandlerError::permanent(
        "a message with the same id and a different payload was handled before; give each message its own id",
    )
}

pub(super) fn not_recorded() -> HandlerError {
    HandlerError::transient(
        "the work is done, but the store has not recorded it; the message is not acked until it has",
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
        let (result, outcome) = (WorkResult::Unknown, Outcome::new(0, ""));
        Answer { outcome, verdict, result, replayed: false, stored, guarded: true }
    }

    fn kind(ran: Result<(Answer, Option<Option<HandlerError>>), GuardError>) -> Option<HandlerErrorKind> {
        handler_result(IntentId::from_bytes([7; 32]), ran).err().map(|failed| failed.kind())
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
            let text = format!("{error}");
            assert_eq!(kind(Err(error)), Some(wanted), "{text}");
        }
    }
}
