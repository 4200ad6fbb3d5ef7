//! Retry or not: pure code, without clock, randomness or network.
//!
//! | seen | retry? |
//! |---|---|
//! | no connection, broken connection, no answer in time | yes |
//! | a 202 of semel's own: an attempt is in flight | yes |
//! | another answer below 400, or a replay of any status | no: it is the answer |
//! | mismatch, uncertain, done with its answer lost | no, whatever any header says |
//! | `x-should-retry`, `Stripe-Should-Retry` | as the header says |
//! | another problem of semel's | as the contract says for its code |
//! | 408, 425, 429, 5xx | yes |
//! | anything else, other 409s included | no |

use std::time::Duration;

use http::StatusCode;

use super::policy::RetryPolicy;
use super::response_class::{ResponseClass, Signals};
use crate::http::problem::Code;

/// The state of an intent after an attempt.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// How many attempts were made, including the one just ended.
    pub attempts: u32,
    /// How long the caller has waited.
    pub elapsed: Duration,
    /// How long the intent may still be sent before the server could have forgotten it.
    pub sendable: Duration,
    /// A random number; all 64 bits are used.
    pub random: u64,
}

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryDecision {
    /// The same request with the same key, after this long.
    Retry {
        /// How long to wait.
        after: Duration,
    },
    /// No further attempt.
    Stop {
        /// The reason.
        why: Why,
    },
}

/// Why there is no further attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Why {
    /// There is an answer that another attempt would not change.
    Answered,
    /// The server forbids it: `x-should-retry: false`.
    ServerSaysNo,
    /// The key was used for another request.
    Mismatch,
    /// The server does not know whether it took effect, and a retry cannot find out.
    Uncertain,
    /// It took effect, and its answer is lost: a retry brings no other.
    AnswerLost,
    /// Another problem of semel's that a retry does not solve.
    Problem(Code),
    /// The policy's limit of attempts is reached.
    Attempts,
    /// The next attempt would begin after the caller's time limit.
    Time,
    /// The next attempt might come after the server has forgotten the key.
    Retention,
}

/// Decides whether to retry. Every retry begins within the budget: `elapsed + after < time_max` and
/// `after < sendable`.
pub fn decide(policy: &RetryPolicy, moment: &Moment, seen: &ResponseClass) -> RetryDecision {
    if let Some(why) = stop_reason(seen) {
        return RetryDecision::Stop { why };
    }
    if moment.attempts >= policy.attempts_max {
        return RetryDecision::Stop { why: Why::Attempts };
    }
    let after = wait(policy, moment, seen);
    if after >= policy.time_max.saturating_sub(moment.elapsed) {
        return RetryDecision::Stop { why: Why::Time };
    }
    if after >= moment.sendable {
        return RetryDecision::Stop { why: Why::Retention };
    }
    RetryDecision::Retry { after }
}

/// Why another attempt makes no sense; `None` if it does.
fn stop_reason(seen: &ResponseClass) -> Option<Why> {
    let ResponseClass::Answer(signals) = seen else { return None };
    // Checked first, because after these codes a retry does harm or changes nothing. A lost answer stays lost: a retry
    // gets the same problem again.
    match signals.code {
        Some(Code::Reused) => return Some(Why::Mismatch),
        Some(Code::Uncertain) => return Some(Why::Uncertain),
        Some(Code::AnswerLost) => return Some(Why::AnswerLost),
        _ => {}
    }
    if signals.replayed || (signals.status < StatusCode::BAD_REQUEST && !signals.is_under_way()) {
        return Some(Why::Answered);
    }
    let by_status = || matches!(signals.status.as_u16(), 408 | 425 | 429 | 500..);
    match (signals.should_retry, signals.code) {
        (Some(true), _) => None,
        (Some(false), Some(code)) => Some(Why::Problem(code)),
        (Some(false), None) => Some(Why::ServerSaysNo),
        (None, Some(code)) => (!is_transient(code)).then_some(Why::Problem(code)),
        (None, None) => (!by_status()).then_some(Why::Answered),
    }
}

/// The codes that the contract allows to retry automatically.
fn is_transient(code: Code) -> bool {
    matches!(
        code,
        Code::InProgress
            | Code::AttemptFailed
            | Code::NotRebuilt
            | Code::StoreUnavailable
            | Code::Busy
            | Code::Draining
    )
}

/// Exponential backoff with full jitter (anything up to the bound), which spreads many clients best. After a
/// `Retry-After`, which all of them got, the jitter is added to it.
fn wait(policy: &RetryPolicy, moment: &Moment, seen: &ResponseClass) -> Duration {
    match seen {
        ResponseClass::Answer(Signals { retry_after: Some(asked), .. }) => {
            asked.saturating_add(share(policy.backoff.first, moment.random))
        }
        _ => share(policy.backoff.bound(moment.attempts.saturating_sub(1)), moment.random),
    }
}

fn share(of: Duration, random: u64) -> Duration {
    let nanos = of.as_nanos().min(u128::from(u64::MAX));
    Duration::from_nanos(((nanos * u128::from(random)) >> 64) as u64)
}

/// What is known about the effect once there is no further attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// The last response is the answer.
    Answered,
    /// It took effect, and there is no answer.
    AnswerLost,
    /// The last response is a refusal, and no attempt is in doubt.
    Refused,
    /// It may have taken effect.
    InDoubt,
    /// No attempt was carried out.
    NotSent,
}

/// `doubt`: an earlier attempt may have taken effect.
pub(super) fn conclude(doubt: bool, why: Why, seen: &ResponseClass) -> Known {
    let ResponseClass::Answer(signals) = seen else {
        return if doubt || leaves_doubt(seen) { Known::InDoubt } else { Known::NotSent };
    };
    if !settles(signals) && (doubt || leaves_doubt(seen)) {
        return Known::InDoubt;
    }
    match why {
        Why::Answered | Why::ServerSaysNo => Known::Answered,
        Why::AnswerLost => Known::AnswerLost,
        _ => Known::Refused,
    }
}

/// Whether this attempt may have taken effect without an answer that shows it.
pub(super) fn leaves_doubt(seen: &ResponseClass) -> bool {
    let signals = match seen {
        ResponseClass::NotSent => return false,
        ResponseClass::Lost | ResponseClass::TimedOut => return true,
        ResponseClass::Answer(signals) => signals,
    };
    match (signals.code, signals.status.as_u16()) {
        // The request took effect or may have (a failed attempt of a keyed operation may have, too), and its result is
        // unknown without an answer.
        (Some(code), _) => matches!(
            code,
            Code::InProgress | Code::Uncertain | Code::AttemptFailed | Code::KeyExpired | Code::NotRebuilt
        ),
        (None, ..=499 | 501) => false,
        // A server that sends `Retry-After` has done nothing; others may be a proxy that gave up.
        (None, 503) => signals.retry_after.is_none(),
        (None, _) => true,
    }
}

/// Whether the answer is about the intent, and so about all earlier attempts. An answer about this attempt alone (a
/// token that expired between two retries) says nothing about earlier ones.
fn settles(signals: &Signals) -> bool {
    match (signals.code, signals.status.as_u16()) {
        (Some(code), _) => matches!(code, Code::Reused | Code::AnswerLost),
        _ if signals.replayed => true,
        (None, 401 | 403 | 407 | 408 | 413 | 425 | 429 | 431 | 500..) => false,
        (None, _) => true,
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
