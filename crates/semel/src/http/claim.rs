//! The claim of a request, as its handler sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use http::header::HeaderName;
use tokio::time::Instant;

use super::failure::Known;
use super::profile::Profile;
use crate::guard::{Attempt, Rebuild};
use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::{Epoch, Intent};
use crate::intent::key::Key;
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::Retention;
use crate::store::protect::Protection;

const UNMARKED: u8 = 0;
const APPLIED: u8 = 1;
const NOT_APPLIED: u8 = 2;

/// The claim a handler runs under. It is in the request's extensions; with the feature `axum` it is an
/// extractor.
///
/// ```
/// use semel::http::ClaimHandle;
///
/// async fn charge(request: http::Request<Vec<u8>>) -> http::Response<Vec<u8>> {
///     let claim = request.extensions().get::<ClaimHandle>().cloned();
///     if let Some(claim) = claim {
///         // The same on every retry: pass it on to the provider.
///         let _provider_key = claim.child("charge");
///         // The card was refused before anything was booked.
///         claim.mark_not_applied();
///     }
///     http::Response::new(Vec::new())
/// }
/// # let _ = charge;
/// ```
#[derive(Clone, Debug)]
pub struct ClaimHandle(Arc<ClaimState>);

#[derive(Debug)]
struct ClaimState {
    attempt: Attempt,
    fingerprint: Fingerprint,
    marked: AtomicU8,
    contract: Option<Contract>,
}

/// The layer's settings that a handler needs to claim in its own transaction.
#[derive(Debug)]
#[cfg_attr(not(feature = "_sql"), expect(dead_code, reason = "there is no transaction to claim in"))]
pub(super) struct Contract {
    pub(super) retention: Retention,
    pub(super) lease: Duration,
    pub(super) wait: Duration,
    /// From then on the key is older than the retention, and nothing may be claimed under it.
    pub(super) expires: Option<Instant>,
    pub(super) rebuild: Option<Arc<dyn Rebuild>>,
    pub(super) replay_headers: Vec<HeaderName>,
    pub(super) response_bytes_max: usize,
    pub(super) profile: Profile,
    pub(super) types: String,
    pub(super) protection: Protection,
}

/// In the extensions of a handler's answer: a replay of which only a reference is stored. The layer rebuilds it.
#[derive(Clone)]
pub(super) struct ByReference(pub(super) Verdict, pub(super) Outcome);

impl ClaimHandle {
    pub(super) fn new(attempt: Attempt, fingerprint: Fingerprint) -> Self {
        Self::of(attempt, fingerprint, None)
    }

    /// For an atomic handler, which has not claimed yet.
    pub(super) fn unclaimed(intent: Intent, fingerprint: Fingerprint, contract: Contract) -> Self {
        Self::of(Attempt { intent, number: 0, epoch: None }, fingerprint, Some(contract))
    }

    fn of(attempt: Attempt, fingerprint: Fingerprint, contract: Option<Contract>) -> Self {
        Self(Arc::new(ClaimState { attempt, fingerprint, marked: AtomicU8::new(UNMARKED), contract }))
    }

    /// `None` if the layer itself has claimed.
    #[cfg_attr(not(feature = "_sql"), expect(dead_code, reason = "there is no transaction to claim in"))]
    pub(super) fn contract(&self) -> Option<&Contract> {
        self.0.contract.as_ref()
    }

    /// The intent.
    pub fn intent(&self) -> &Intent {
        &self.0.attempt.intent
    }

    /// The fingerprint of the request, with which an atomic handler claims.
    pub fn fingerprint(&self) -> Fingerprint {
        self.0.fingerprint
    }

    /// The idempotency key for one remote call of this work: the same on every retry.
    pub fn child(&self, step: &str) -> Key {
        self.0.attempt.child(step)
    }

    /// Attempt number, starting at 1; 0 before an atomic handler has claimed.
    pub fn attempt(&self) -> u32 {
        self.0.attempt.number
    }

    /// The fencing token, for a downstream that compares it. `None` when the store is down and the operation runs
    /// unguarded, and in an atomic handler.
    pub fn epoch(&self) -> Option<Epoch> {
        self.0.attempt.epoch
    }

    /// The effect has happened: it must not run again, whatever is answered or fails from here on.
    pub fn mark_applied(&self) {
        self.0.marked.store(APPLIED, Ordering::SeqCst);
    }

    /// Nothing has happened, or it was undone: the same key may run again, whatever is answered.
    pub fn mark_not_applied(&self) {
        self.0.marked.store(NOT_APPLIED, Ordering::SeqCst);
    }

    pub(super) fn known(&self) -> Option<Known> {
        match self.0.marked.load(Ordering::SeqCst) {
            APPLIED => Some(Known::Applied),
            NOT_APPLIED => Some(Known::NotApplied),
            _ => None,
        }
    }
}
