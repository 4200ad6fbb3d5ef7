//! GitHub: `X-Hub-Signature-256: sha256=…`.

use http::HeaderMap;

use super::event_id::{EventId, Place};
use super::header::{self, hex};
use super::secrets::Secrets;
use super::verifier::{Verified, Verifier, VerifierError, VerifyError};

const HEADER: &str = "x-hub-signature-256";

/// Believes what [GitHub](https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries) has signed:
/// HMAC-SHA256 over the body. The event's id is `X-GitHub-Delivery`, which stays the same when it is delivered again; its kind
/// is `X-GitHub-Event`.
///
/// The body is all that GitHub signs: not the time, not the id, not the kind. Whoever has seen one delivery can bring its
/// body again under another id, for as long as the secret lives. Where that is to be feared, take
/// [the body itself](Github::id_of_body) for the id.
#[derive(Clone, Debug)]
#[must_use]
pub struct Github {
    secrets: Secrets,
    naming: EventId,
}

impl Github {
    /// With these secrets: several while one is changed.
    ///
    /// # Errors
    /// When one is none, or there are none or too many.
    pub fn new(secrets: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, VerifierError> {
        let naming =
            EventId { id: Place::header("x-github-delivery")?, kind: Some(Place::header("x-github-event")?) };
        Ok(Self { secrets: Secrets::text(secrets)?, naming })
    }

    /// The SHA-256 of the body is the event's id. Nobody without the secret can make a second event of one, but two events
    /// with the same bytes are one.
    pub fn id_of_body(mut self) -> Self {
        self.naming.id = Place::Digest;
        self
    }
}

impl Verifier for Github {
    fn verify(&self, headers: &HeaderMap, body: &[u8], _: u64) -> Result<Verified, VerifyError> {
        let text = header::only(headers, HEADER)?;
        let signature = text.strip_prefix("sha256=").and_then(hex);
        let signature = signature.ok_or(VerifyError::Malformed("no signature by SHA-256"))?;
        self.secrets.check(&[body], &[signature])?;
        self.naming.name(headers, body, None)
    }
}
