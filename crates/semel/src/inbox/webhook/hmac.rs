//! HMAC-SHA256 in a header: the scheme of most other providers.

use std::time::Duration;

use http::HeaderMap;
use http::header::HeaderName;

use super::event_id::{EventId, Location};
use super::header::{self, base64, hex};
use super::secrets::Secrets;
use super::timestamp::Tolerance;
use super::verifier::{Verified, Verifier, VerifierError, VerifyError};

/// Verifies a header with the HMAC-SHA256 of the body, or of a timestamp and the body.
///
/// ```
/// use semel::inbox::webhook::PlainHmac;
///
/// // Slack: `v0=` and hexadecimal digits, over `v0:time:body`.
/// let slack = PlainHmac::new("x-slack-signature", ["8f742231b10e8888abcd99yyyzzz85a5"])?
///     .prefix("v0=")
///     .timestamp("x-slack-request-timestamp")?
///     .signed("v0:", ":")
///     .id_at("/event_id")?
///     .kind_at("/event/type")?;
/// // Shopify: base64, over the body alone.
/// let shopify = PlainHmac::new("x-shopify-hmac-sha256", ["hush, a secret"])?
///     .base64()
///     .id_header("x-shopify-event-id")?
///     .kind_header("x-shopify-topic")?;
/// # Ok::<(), semel::inbox::webhook::VerifierError>(())
/// ```
///
/// Without a configured id, the SHA-256 of the body is the event's id. An id in the body is signed. One in a header is
/// not: an attacker who has seen a request can replay its body under another id.
#[derive(Clone, Debug)]
#[must_use]
pub struct PlainHmac {
    secrets: Secrets,
    signature: HeaderName,
    prefix: String,
    base64: bool,
    timestamp: Option<HeaderName>,
    around: (String, String),
    tolerance: Tolerance,
    event_id: EventId,
}

impl PlainHmac {
    /// The signature is in that header, in hexadecimal digits, and uses one of these secrets.
    ///
    /// # Errors
    /// If the header name or a secret is invalid, or there are no secrets or too many.
    pub fn new(
        header: &str,
        secrets: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, VerifierError> {
        Ok(Self {
            secrets: Secrets::text(secrets)?,
            signature: header::name(header)?,
            prefix: String::new(),
            base64: false,
            timestamp: None,
            around: (String::new(), ".".to_owned()),
            tolerance: Tolerance::default(),
            event_id: EventId { id: Location::Digest, kind: None },
        })
    }

    /// The signature is in base64.
    pub fn base64(mut self) -> Self {
        self.base64 = true;
        self
    }

    /// The signature has this prefix, such as `sha256=`.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.to_owned();
        self
    }

    /// The header with the timestamp, in seconds since 1970. The timestamp is always part of the signed text: otherwise
    /// anyone could replay an old webhook with a new time.
    ///
    /// # Errors
    /// If the header name is invalid.
    pub fn timestamp(mut self, header: &str) -> Result<Self, VerifierError> {
        self.timestamp = Some(header::name(header)?);
        Ok(self)
    }

    /// The text that is signed before the timestamp, and between timestamp and body. Default: nothing, and a full stop.
    pub fn signed(mut self, before: &str, between: &str) -> Self {
        self.around = (before.to_owned(), between.to_owned());
        self
    }

    /// How far a signature's timestamp may be from our clock. Default: [`TOLERANCE`](super::TOLERANCE).
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = Tolerance::of(tolerance);
        self
    }

    /// The event's id is at that JSON pointer in the body, such as `/id`.
    ///
    /// # Errors
    /// If it is not a JSON pointer.
    pub fn id_at(mut self, pointer: &str) -> Result<Self, VerifierError> {
        self.event_id.id = Location::json(pointer)?;
        Ok(self)
    }

    /// The event's id is in that header.
    ///
    /// # Errors
    /// If the header name is invalid.
    pub fn id_header(mut self, name: &str) -> Result<Self, VerifierError> {
        self.event_id.id = Location::header(name)?;
        Ok(self)
    }

    /// The event's kind is at that JSON pointer in the body.
    ///
    /// # Errors
    /// If it is not a JSON pointer.
    pub fn kind_at(mut self, pointer: &str) -> Result<Self, VerifierError> {
        self.event_id.kind = Some(Location::json(pointer)?);
        Ok(self)
    }

    /// The event's kind is in that header.
    ///
    /// # Errors
    /// If the header name is invalid.
    pub fn kind_header(mut self, name: &str) -> Result<Self, VerifierError> {
        self.event_id.kind = Some(Location::header(name)?);
        Ok(self)
    }
}

impl Verifier for PlainHmac {
    fn verify(&self, headers: &HeaderMap, body: &[u8], now_s: u64) -> Result<Verified, VerifyError> {
        let text = header::only(headers, self.signature.as_str())?;
        let text = text
            .strip_prefix(&self.prefix)
            .ok_or(VerifyError::Malformed("the signature has another prefix"))?;
        let signature = if self.base64 { base64(text) } else { hex(&text.to_ascii_lowercase()) };
        let signature = [signature.ok_or(VerifyError::Malformed("not an HMAC-SHA256 signature"))?];
        let Some(name) = &self.timestamp else {
            self.secrets.check(&[body], &signature)?;
            return self.event_id.identify(headers, body, None);
        };
        let time = header::only(headers, name.as_str())?;
        let signed_at_s = header::seconds(time)?;
        let (before, between) = &self.around;
        let signed = [before.as_bytes(), time.as_bytes(), between.as_bytes(), body];
        self.secrets.check(&signed, &signature)?;
        self.tolerance.check(signed_at_s, now_s)?;
        self.event_id.identify(headers, body, Some(signed_at_s))
    }
}
