//! Stripe: `Stripe-Signature: t=…,v1=…`.

use std::time::Duration;

use http::HeaderMap;

use super::event_id::{EventId, Location};
use super::header::{self, hex};
use super::secrets::{SIGNATURES_MAX, Secrets, Signature};
use super::timestamp::Tolerance;
use super::verifier::{Verified, Verifier, VerifierError, VerifyError};

const HEADER: &str = "stripe-signature";

/// Verifies what [Stripe](https://docs.stripe.com/webhooks) signs: HMAC-SHA256 over time and body. The event's id is
/// the `id` in the body, its kind the `type`.
#[derive(Clone, Debug)]
#[must_use]
pub struct Stripe {
    secrets: Secrets,
    tolerance: Tolerance,
    event_id: EventId,
}

impl Stripe {
    /// With these signing secrets (`whsec_…`, as the dashboard shows them): several while one is rolled.
    ///
    /// # Errors
    /// If a secret is invalid, or there are none or too many.
    pub fn new(secrets: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, VerifierError> {
        let event_id = EventId { id: Location::json("/id")?, kind: Some(Location::json("/type")?) };
        Ok(Self { secrets: Secrets::text(secrets)?, tolerance: Tolerance::default(), event_id })
    }

    /// How far a signature's timestamp may be from our clock. Default: [`TOLERANCE`](super::TOLERANCE).
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = Tolerance::of(tolerance);
        self
    }
}

impl Verifier for Stripe {
    fn verify(&self, headers: &HeaderMap, body: &[u8], now_s: u64) -> Result<Verified, VerifyError> {
        let (time, signatures) = parse(header::only(headers, HEADER)?)?;
        let signed_at_s = header::seconds(time)?;
        self.secrets.check(&[time.as_bytes(), b".", body], &signatures)?;
        self.tolerance.check(signed_at_s, now_s)?;
        self.event_id.identify(headers, body, Some(signed_at_s))
    }
}

/// The timestamp as sent, and the signatures of scheme `v1`. `v0` is for test events and proves nothing.
fn parse(text: &str) -> Result<(&str, Vec<Signature>), VerifyError> {
    let (mut time, mut signatures) = (None, Vec::new());
    let items = text.split(',').map(|item| item.split_once('='));
    for item in items {
        match item.ok_or(VerifyError::Malformed("not a list of names and values"))? {
            ("t", _) if time.is_some() => return Err(VerifyError::Malformed("two timestamps")),
            ("t", value) => time = Some(value),
            ("v1", value) if signatures.len() < SIGNATURES_MAX => signatures.extend(hex(value)),
            _ => {}
        }
    }
    match time {
        Some(time) if !signatures.is_empty() => Ok((time, signatures)),
        Some(_) => Err(VerifyError::Malformed("no signature of a known scheme")),
        None => Err(VerifyError::Malformed("no timestamp")),
    }
}
