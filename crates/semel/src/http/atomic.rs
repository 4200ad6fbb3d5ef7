//! The claim in the handler's own transaction: the response is stored by the handler's commit.

use bytes::Bytes;
use http::Response;
use tokio::time::Instant;

use super::claim::{ByReference, ClaimHandle, Contract};
use super::headers::{kept, strip_ours};
use super::problem::{Problem, RETRY_AFTER};
use super::profile::Profile;
use super::respond;
use super::rule::RESPONSE_BYTES_MAX;
use crate::guard::{GuardError, rebuild};
use crate::intent::outcome::{Body, Outcome, Verdict};
use crate::store::{ErrorKind, Fate, StoreError};
use crate::tx::driver::{DriverError, DriverErrorKind, Tx};
use crate::tx::{Once, Phases, Remember, TxError};

/// A response that is stored, or was: what the last of a handler's [phases](ClaimHandle::phases) returns.
#[derive(Debug)]
pub struct Remembered(Origin);

#[derive(Debug)]
enum Origin {
    Fresh(Response<Bytes>, Outcome),
    Stored(Verdict, Outcome),
}

impl Remember for Remembered {
    fn remember(&self) -> Result<Outcome, String> {
        let (Origin::Fresh(_, outcome) | Origin::Stored(_, outcome)) = &self.0;
        Ok(outcome.clone())
    }

    fn recall(verdict: Verdict, outcome: Outcome) -> Result<Self, TxError> {
        Ok(Self(Origin::Stored(verdict, outcome)))
    }
}

impl ClaimHandle {
    /// Runs `work` in the transaction `tx` unless this request was committed before, and returns the response to
    /// answer with. Commit, then answer.
    ///
    /// The response is stored in `tx` as well: after the commit the layer replays it to every retry, even if the
    /// process died before it could answer. Before the commit nothing has happened, and a retry runs at once. An `Ok`
    /// of `work` is stored whatever its status; return an error to roll back, and answer that yourself.
    ///
    /// ```no_run
    /// # #[cfg(all(feature = "sqlx-postgres", feature = "axum"))] {
    /// use axum::response::{IntoResponse, Response};
    /// use http::StatusCode;
    /// use semel::http::ClaimHandle;
    ///
    /// async fn pay(pool: sqlx::PgPool, claim: ClaimHandle) -> Result<Response, sqlx::Error> {
    ///     let mut tx = pool.begin().await?;
    ///     let paid = claim.once_tx(&mut tx, async |tx| {
    ///         sqlx::query("INSERT INTO payment (cents) VALUES (4200)").execute(&mut *tx).await?;
    ///         Ok::<_, sqlx::Error>(http::Response::new("paid"))
    ///     });
    ///     match paid.await {
    ///         Ok(response) => {
    ///             tx.commit().await?;
    ///             Ok(response.map(axum::body::Body::from))
    ///         }
    ///         // In flight, a mismatch, or the database is down: the answer of the HTTP contract.
    ///         Err(error) => Ok(match claim.refusal(&error) {
    ///             Some(refusal) => refusal.map(axum::body::Body::from),
    ///             None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    ///         }),
    ///     }
    /// }
    /// # }
    /// ```
    pub async fn once_tx<X, B, E>(
        &self,
        tx: &mut X,
        work: impl for<'l> AsyncFnOnce(X::Lent<'l>) -> Result<Response<B>, E>,
    ) -> Result<Response<Bytes>, TxError<E>>
    where
        X: Tx,
        B: Into<Bytes>,
    {
        let contract = self.unclaimed_contract()?;
        let answer = self.once(contract).run_tx(tx, async |tx| Ok(self.remembered(work(tx).await?))).await?;
        Ok(self.response(answer.value))
    }

    /// This request in phases around remote calls, for a handler of an atomic operation: see [`Phases`].
    ///
    /// The last phase returns a [`remembered`](Self::remembered) response, which the layer replays to every retry. A
    /// duplicate in the meantime gets "in progress" ([`refusal`](Self::refusal)); after a crash a retry resumes when
    /// the lease has expired.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx-postgres")] {
    /// # async fn charge(key: semel::Key) -> Result<String, std::io::Error> { Ok(key.as_str().to_owned()) }
    /// use bytes::Bytes;
    /// use http::Response;
    /// use semel::http::ClaimHandle;
    /// use semel::tx::Started;
    ///
    /// async fn pay(pool: sqlx::PgPool, claim: ClaimHandle) -> Result<Response<Bytes>, Box<dyn std::error::Error>> {
    ///     let phases = claim.phases(&["reserve", "book"])?;
    ///     let mut tx = pool.begin().await?;
    ///     let mut run = match phases.start_tx(&mut tx).await? {
    ///         Started::Run(run) => run,
    ///         Started::Replay(answer) => return Ok(claim.response(answer)),
    ///     };
    ///     run.phase_tx(&mut tx, "reserve", async |tx| {
    ///         sqlx::query("INSERT INTO open_order (cents) VALUES (4200)").execute(&mut *tx).await?;
    ///         Ok::<_, sqlx::Error>(())
    ///     })
    ///     .await?;
    ///     tx.commit().await?;
    ///
    ///     let receipt = charge(run.child("charge")).await?;
    ///
    ///     let mut tx = pool.begin().await?;
    ///     let booked = run.phase_tx(&mut tx, "book", async |tx| {
    ///         sqlx::query("INSERT INTO payment (receipt) VALUES ($1)").bind(&receipt).execute(&mut *tx).await?;
    ///         Ok::<_, sqlx::Error>(claim.remembered(Response::new(receipt)))
    ///     });
    ///     let booked = booked.await?;
    ///     tx.commit().await?;
    ///     Ok(claim.response(booked.value))
    /// }
    /// # }
    /// ```
    pub fn phases(&self, names: &[&str]) -> Result<Phases, TxError> {
        let contract = self.unclaimed_contract()?;
        let phases = Phases::new(self.intent(), self.fingerprint(), names)
            .map_err(|error| TxError::Value { why: error.to_string() })?;
        let phases = phases.retention(contract.retention).lease(contract.lease);
        Ok(phases.protect(contract.protection.clone()))
    }

    /// A response as it is stored: with the headers that are kept, and its body if that is not too large.
    pub fn remembered(&self, response: Response<impl Into<Bytes>>) -> Remembered {
        let mut response = response.map(Into::into);
        strip_ours(response.headers_mut());
        let (also, bytes_max, rebuild) = match self.contract() {
            Some(contract) => {
                (&contract.replay_headers[..], contract.response_bytes_max, contract.rebuild.as_deref())
            }
            None => (&[][..], RESPONSE_BYTES_MAX, None),
        };
        let headers = kept(response.headers(), also);
        // An answer with too many headers could not be replayed the same; one that is too large is not kept.
        let whole = headers.is_some() && response.body().len() <= bytes_max;
        let body = if whole { Body::Kept(response.body().clone()) } else { Body::NotKept };
        let code = response.status().as_u16();
        let outcome = Outcome { code, headers: headers.unwrap_or_default(), body };
        let outcome = rebuild::kept(rebuild, self.intent().operation(), outcome);
        Remembered(Origin::Fresh(response, outcome))
    }

    /// The response to answer with: as the handler made it, or a replay of what an earlier run committed. Return it to
    /// the layer with its extensions: where only a reference is stored ([`minimal`](super::Rule::minimal)), the layer
    /// rebuilds the answer.
    pub fn response(&self, remembered: Remembered) -> Response<Bytes> {
        let profile = self.contract().map_or_else(Profile::default, |contract| contract.profile);
        match remembered.0 {
            Origin::Fresh(response, _) => response,
            Origin::Stored(verdict, outcome) => {
                let mut response = respond::replay(&outcome, verdict, profile);
                if matches!(outcome.body, Body::Reference(_)) {
                    response.extensions_mut().insert(ByReference(verdict, outcome));
                }
                response
            }
        }
    }

    /// The answer of the HTTP contract to an error of [`once_tx`](Self::once_tx). `None` for errors of the work
    /// itself, which the handler answers.
    pub fn refusal<E>(&self, error: &TxError<E>) -> Option<Response<Bytes>> {
        let problem = match error {
            TxError::Mismatch => GuardError::Mismatch,
            TxError::InFlight { .. } => GuardError::InFlight { retry_after: RETRY_AFTER },
            TxError::Uncertain { id } => GuardError::Uncertain { id: *id, settles_in: None },
            TxError::Work(_) | TxError::Refused(_) | TxError::Value { .. } => return None,
            TxError::Retry(_)
            | TxError::Busy { .. }
            | TxError::Lost
            | TxError::PhasesChanged { .. }
            | TxError::Database(_) => {
                let message = "the handler's transaction failed";
                let error = StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message);
                GuardError::StoreUnavailable(error)
            }
        };
        let (profile, types) = match self.contract() {
            Some(contract) => (contract.profile, contract.types.as_str()),
            None => (Profile::default(), ""),
        };
        Some(Problem::from(&problem).response(profile, types))
    }

    fn unclaimed_contract(&self) -> Result<&Contract, DriverError> {
        let message = "the layer has already claimed this request, so a claim in the handler's transaction would wait \
                       for the layer's own claim; give the operation `Rule::effect(Effect::Atomic)`";
        let contract = self.contract().ok_or_else(|| DriverError::new(DriverErrorKind::Other, message))?;
        if contract.expires.is_some_and(|expires| Instant::now() >= expires) {
            let message = "the key became older than the retention before it was claimed, so nothing was done; a retry \
                           is refused as expired";
            return Err(DriverError::new(DriverErrorKind::Other, message));
        }
        Ok(contract)
    }

    fn once(&self, contract: &Contract) -> Once {
        // A wait ends when the key expires: after that the outcome of an earlier run may be deleted.
        let left = contract.expires.map(|expires| expires.saturating_duration_since(Instant::now()));
        let wait = left.map_or(contract.wait, |left| contract.wait.min(left));
        let once = Once::new(self.intent(), self.fingerprint()).retention(contract.retention).wait(wait);
        once.protect(contract.protection.clone())
    }
}
