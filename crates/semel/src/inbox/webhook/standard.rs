//! Webhooks signed as the Standard Webhooks specification says, or with the headers of Svix, from which it is derived.

use std::time::Duration;

use http::HeaderMap;

use super::event_id::{Location, Signed};
use super::header::{self, base64};
use super::secrets::{SIGNATURES_MAX, Secrets, Signature};
use super::timestamp::Tolerance;
use super::verifier::{Verified, Verifier, VerifierError, VerifyError};
use crate::signature::standard_parts;

const PLAIN: [&str; 3] = ["webhook-id", "webhook-timestamp", "webhook-signature"];
const SVIX: [&str; 3] = ["svix-id", "svix-timestamp", "svix-signature"];

/// Verifies signatures of [Standard Webhooks](https://www.standardwebhooks.com), which semel's own `sink::webhook`
/// makes: HMAC-SHA256 over id, time and body. The headers are `webhook-…`, or `svix-…` if there is no `webhook-id`. The
/// event's id is the signed one; its kind is the `type` in the body.
#[derive(Clone, Debug)]
#[must_use]
pub struct StandardWebhooks {
    secrets: Secrets,
    tolerance: Tolerance,
    kind: Location,
}

impl StandardWebhooks {
    /// With these secrets (`whsec_…`): several while one is rotated.
    ///
    /// # Errors
    /// If a secret is invalid, or there are none or too many.
    pub fn new(secrets: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, VerifierError> {
        let kind = Location::json("/type")?;
        Ok(Self { secrets: Secrets::standard(secrets)?, tolerance: Tolerance::default(), kind })
    }

    /// How far a signature's timestamp may be from our clock. Default: [`TOLERANCE`](super::TOLERANCE).
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = Tolerance::of(tolerance);
        self
    }

    /// The kind is in that header, such as `semel-type` from semel's sink.
    ///
    /// # Errors
    /// If the header name is invalid.
    pub fn kind_header(mut self, name: &str) -> Result<Self, VerifierError> {
        self.kind = Location::header(name)?;
        Ok(self)
    }
}

impl Verifier for StandardWebhooks {
    fn verify(&self, headers: &HeaderMap, body: &[u8], now_s: u64) -> Result<Verified, VerifyError> {
        let names = if headers.contains_key(PLAIN[0]) { PLAIN } else { SVIX };
        let [id, time, list] = names.map(|name| header::only(headers, name));
        let (id, time) = (id?, time?);
        let (signed_at_s, signatures) = (header::seconds(time)?, parse(list?)?);
        self.secrets.check(&standard_parts(id, time, body), &signatures)?;
        self.tolerance.check(signed_at_s, now_s)?;
        let kind = Signed::new(headers, body).read(&self.kind);
        Ok(Verified { id: id.to_owned(), kind, signed_at_s: Some(signed_at_s) })
    }
}

/// `v1,base64`, separated by spaces. Other versions use other kinds of keys.
fn parse(text: &str) -> Result<Vec<Signature>, VerifyError> {
    let ours = text.split(' ').filter_map(|item| item.strip_prefix("v1,"));
    let signatures: Vec<_> = ours.take(SIGNATURES_MAX).filter_map(base64).collect();
    if signatures.is_empty() {
        return Err(VerifyError::Malformed("no signature of a known version"));
    }
    Ok(signatures)
}
