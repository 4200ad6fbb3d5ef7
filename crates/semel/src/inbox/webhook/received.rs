//! What a handler is given.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use serde::de::DeserializeOwned;

use super::verifier::Verified;
use crate::inbox::handle::Handled;
use crate::inbox::identity::{Identity, IdentityError};

/// An event whose signature is right. To be handled with an [`Inbox`](crate::inbox::Inbox), for which it is the message: it
/// is named by provider, tenant and event id.
pub struct Received {
    identity: Identity,
    provider: Arc<str>,
    tenant: Option<String>,
    verified: Verified,
    headers: HeaderMap,
    body: Bytes,
}

impl Received {
    pub(super) fn new(
        provider: Arc<str>,
        tenant: Option<String>,
        verified: Verified,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Self, IdentityError> {
        let identity = Identity::new(&source(&provider, tenant.as_deref()), &verified.id)?;
        Ok(Self { identity, provider, tenant, verified, headers, body })
    }

    /// Who sent it.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// For whom, where the receiver has tenants.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// What the provider calls the event.
    pub fn id(&self) -> &str {
        &self.verified.id
    }

    /// What kind of event it is, where the provider says so.
    pub fn kind(&self) -> Option<&str> {
        self.verified.kind.as_deref()
    }

    /// When it was signed, in seconds since 1970, where the provider says so. Each time it is sent it is signed anew.
    pub fn signed_at_s(&self) -> Option<u64> {
        self.verified.signed_at_s
    }

    /// The request's headers. Most providers do not sign them.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The body as it came.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The body read as JSON.
    ///
    /// # Errors
    /// When it is no JSON, or of another shape.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }
}

impl AsRef<Identity> for Received {
    fn as_ref(&self) -> &Identity {
        &self.identity
    }
}

/// Without what is in it: payloads are personal, and headers hold signatures.
impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("provider", &self.provider)
            .field("tenant", &self.tenant)
            .field("id", &self.verified.id)
            .field("kind", &self.verified.kind)
            .finish_non_exhaustive()
    }
}

/// The source of a provider's events. A provider's name has no slash, so where it ends is plain.
pub(super) fn source(provider: &str, tenant: Option<&str>) -> String {
    match tenant {
        Some(tenant) => format!("webhook:{provider}/{tenant}"),
        None => format!("webhook:{provider}"),
    }
}

/// What a handler says when it is safe to tell the provider: **after** the commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// The effect and its mark are committed.
    Now,
    /// The mark was there before.
    Already,
    /// It is of no interest here, and may come again.
    Ignored,
}

impl<T> From<Handled<T>> for Done {
    fn from(handled: Handled<T>) -> Self {
        if handled.is_already() { Self::Already } else { Self::Now }
    }
}
