//! HMAC-SHA256 in a header: what most other providers do.

use std::time::Duration;

use http::HeaderMap;
use http::header::HeaderName;

use super::event_id::{EventId, Place};
use super::header::{self, base64, hex};
use super::secrets::Secrets;
use super::timestamp::Tolerance;
use super::verifier::{Verified, Verifier, VerifierError, VerifyError};

/// Believes a header that is the HMAC-SHA256 of the body, or of a time and the body.
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
/// Without an id told, the SHA-256 of the body is the event's. An id in the body is signed; one in a header is not, and
/// whoever has seen a request can bring its body again under another.
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
    naming: EventId,
}

impl PlainHmac {
    /// The signature is in that header, in hexadecimal digits, made with one of these secrets.
    ///
    /// # Errors
    /// When it is no header's name, one of the secrets is none, or there are none or too many.
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
            naming: EventId { id: Place::Digest, kind: None },
        })
    }

    /// The signature is in base64.
    pub fn base64(mut self) -> Self {
        self.base64 = true;
        self
    }

    /// The signature has this in front of it, as `sha256=`.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.to_owned();
        self
    }

    /// The time of signing is in that header, in seconds since 1970. It is always part of what is signed: a time that is not
    /// could be made anew by anybody.
    ///
    /// # Errors
    /// When it is no header's name.
    pub fn timestamp(mut self, header: &str) -> Result<Self, VerifierError> {
        self.timestamp = Some(header::name(header)?);
        Ok(self)
    }

    /// What is signed before the time, and between time and body: nothing, and a full stop, unless told otherwise.
    pub fn signed(mut self, before: &str, between: &str) -> Self {
        self.around = (before.to_owned(), between.to_owned());
        self
    }

    /// How far a signature's time may be from ours: [`TOLERANCE`](super::TOLERANCE) unless told otherwise.
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = Tolerance::of(tolerance);
        self
    }

    /// The event's id is at that place of its body (a JSON pointer, as `/id`).
    ///
    /// # Errors
    /// When it is no pointer.
    pub fn id_at(mut self, pointer: &str) -> Result<Self, VerifierError> {
        self.naming.id = Place::json(pointer)?;
        Ok(self)
    }

    /// The event's id is in that header.
    ///
    /// # Errors
    /// When it is no header's name.
    pub fn id_header(mut self, name: &str) -> Result<Self, VerifierError> {
        self.naming.id = Place::header(name)?;
        Ok(self)
    }

    /// The event's kind is at that place of its body.
    ///
    /// # Errors
    /// When it is no pointer.
    pub fn kind_at(mut self, pointer: &str) -> Result<Self, VerifierError> {
        self.naming.kind = Some(Place::json(pointer)?);
        Ok(self)
    }

    /// The event's kind is in that header.
    ///
    /// # Errors
    /// When it is no header's name.
    pub fn kind_header(mut self, name: &str) -> Result<Self, VerifierError> {
        self.naming.kind = Some(Place::header(name)?);
        Ok(self)
    }
}

impl Verifier for PlainHmac {
    fn verify(&self, headers: &HeaderMap, body: &[u8], now_s: u64) -> Result<Verified, VerifyError> {
        let text = header::only(headers, self.signature.as_str())?;
        let text = text.strip_prefix(&self.prefix).ok_or(VerifyError::Malformed("another prefix"))?;
        let signature = if self.base64 { base64(text) } else { hex(&text.to_ascii_lowercase()) };
        let signature = [signature.ok_or(VerifyError::Malformed("no signature by SHA-256"))?];
        let Some(name) = &self.timestamp else {
            self.secrets.check(&[body], &signature)?;
            return self.naming.name(headers, body, None);
        };
        let time = header::only(headers, name.as_str())?;
        let signed_at_s = header::seconds(time)?;
        let (before, between) = &self.around;
        let signed = [before.as_bytes(), time.as_bytes(), between.as_bytes(), body];
        self.secrets.check(&signed, &signature)?;
        self.tolerance.check(signed_at_s, now_s)?;
        self.naming.name(headers, body, Some(signed_at_s))
    }
}
