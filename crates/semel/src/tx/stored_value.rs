//! How an answer is stored: an [`Outcome`] as it is, or any serde value as JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::driver::{DriverError, DriverErrorKind};
use super::error::TxError;
use crate::guard::{Failure, FailureKind};
use crate::intent::identity::{Intent, IntentId};
use crate::intent::outcome::{Body, Outcome, Verdict};
use crate::store::protect::Protection;

const OK: u16 = 200;

/// A value that the commit can store and every retry gets again: an [`Outcome`], or any serde value.
pub trait Remember: Sized {
    /// Converts to the stored form.
    fn remember(&self) -> Result<Outcome, String>;

    /// Converts back.
    fn recall(verdict: Verdict, outcome: Outcome) -> Result<Self, TxError>;
}

/// As it is: code, headers and bytes. Of a body that is too large to keep only "done" is stored.
impl Remember for Outcome {
    fn remember(&self) -> Result<Outcome, String> {
        Ok(self.clone().kept())
    }

    fn recall(_: Verdict, outcome: Outcome) -> Result<Self, TxError> {
        match outcome.body {
            // It was stored through a protected store; sealed, it is not an answer.
            Body::Sealed(_) => Err(TxError::Value { why: "it is sealed, and was not opened".to_owned() }),
            _ => Ok(outcome),
        }
    }
}

/// As JSON. Nothing is committed yet when it is stored, so a value that cannot be stored is an error, not a loss.
impl<T: Serialize + DeserializeOwned> Remember for T {
    fn remember(&self) -> Result<Outcome, String> {
        let outcome = Outcome::new(OK, serde_json::to_vec(self).map_err(|error| error.to_string())?);
        if outcome.fits() { Ok(outcome) } else { Err("it is too large to keep".to_owned()) }
    }

    fn recall(verdict: Verdict, outcome: Outcome) -> Result<Self, TxError> {
        let body = outcome.body_bytes();
        if verdict == Verdict::FailedFinal {
            let message = String::from_utf8_lossy(body.map_or(&[][..], |body| body)).into_owned();
            return Err(TxError::Refused(Failure { kind: FailureKind::Final, code: outcome.code, message }));
        }
        let body = body.ok_or(TxError::Value { why: "it was not kept".to_owned() })?;
        serde_json::from_slice(body).map_err(|error| TxError::Value { why: error.to_string() })
    }
}

/// Where an outcome is stored: what its seal is bound to.
pub(super) struct Kept {
    id: IntentId,
    part: IntentId,
}

impl Kept {
    /// The outcome of the whole intent, as any [`Protected`](crate::store::protect::Protected) store reads it.
    pub(super) fn whole(intent: &Intent) -> Self {
        Self { id: intent.id(), part: intent.id() }
    }

    /// The result of one phase: it is refused in place of another phase or of the outcome.
    pub(super) fn phase(intent: &Intent, phase: &str) -> Self {
        let part = Intent::new(intent.scope().clone(), intent.operation().clone(), intent.child(phase));
        Self { id: intent.id(), part: part.id() }
    }

    /// The stored form.
    pub(super) fn protect(&self, protection: &Protection, outcome: Outcome) -> Result<Outcome, TxError> {
        let protected = protection.protect(&self.part, outcome);
        protected.map_err(|error| TxError::Value { why: error.to_string() })
    }

    /// The original outcome. One that cannot be opened is an error, never "not done": nothing runs again.
    pub(super) fn reveal(&self, protection: &Protection, stored: Outcome) -> Result<Outcome, TxError> {
        let revealed = protection.reveal_part(&self.id, &self.part, stored);
        revealed.map_err(|error| DriverError::of(DriverErrorKind::Unreadable, error).into())
    }
}
