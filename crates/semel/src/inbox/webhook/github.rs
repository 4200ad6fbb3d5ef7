//! GitHub: `X-Hub-Signature-256: sha256=…`.

use http::HeaderMap;

use super::event_id::{EventId, Location};
use super::header::{self, hex};
use super::secrets::Secrets;
use super::verifier::{Verified, Verifier, VerifierError, VerifyError};

const HEADER: &str = "x-hub-signature-256";

/// Verifies what [GitHub](https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries) signs:
/// HMAC-SHA256 over the body. The event's id is `X-GitHub-Delivery`, which stays the same on redelivery; its kind is
/// `X-GitHub-Event`.
///
/// GitHub signs only the body: not the time, the id or the kind. An attacker who has seen a delivery can replay its
/// body under another id, for as long as the secret is in use. If that is a risk, use [the body's
/// digest](Github::id_of_body) as the id.
#[derive(Clone, Debug)]
#[must_use]
pub struct Github {
    secrets: Secrets,
    event_id: EventId,
}

impl Github {
    /// With these secrets: several while one is rotated.
    ///
    /// # Errors
    /// If a secret is invalid, or there are none or too many.
    pub fn new(secrets: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, VerifierError> {
        let event_id = EventId {
            id: Location::header("x-github-delivery")?,
            kind: Some(Location::header("x-github-event")?),
        };
        Ok(Self { secrets: Secrets::text(secrets)?, event_id })
    }

    /// Uses the SHA-256 of the body as the event's id. Without the secret no second event can be made of one, but two
    /// events with the same bytes count as one.
    pub fn id_of_body(mut self) -> Self {
        self.event_id.id = Location::Digest;
        self
    }
}

impl Verifier for Github {
    fn verify(&self, headers: &HeaderMap, body: &[u8], _: u64) -> Result<Verified, VerifyError> {
        let text = header::only(headers, HEADER)?;
        let signature = text.strip_prefix("sha256=").and_then(hex);
        let signature = signature.ok_or(VerifyError::Malformed("not an HMAC-SHA256 signature"))?;
        self.secrets.check(&[body], &[signature])?;
        self.event_id.identify(headers, body, None)
    }
}
