//! The event that a handler receives.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use serde::de::DeserializeOwned;

use super::verifier::Verified;
use crate::inbox::identity::{Identity, IdentityError};

/// An event with a valid signature. Handle it with an [`Inbox`](crate::inbox::Inbox), to which it is the message:
/// provider, tenant and event id are its identity.
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

    /// The provider that sent it.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// Its tenant, if the receiver has tenants.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// The provider's id of the event.
    pub fn id(&self) -> &str {
        &self.verified.id
    }

    /// The kind of event, if the provider sends it.
    pub fn kind(&self) -> Option<&str> {
        self.verified.kind.as_deref()
    }

    /// When it was signed, in seconds since 1970, if the provider sends it. Each delivery is signed anew.
    pub fn signed_at_s(&self) -> Option<u64> {
        self.verified.signed_at_s
    }

    /// The request's headers. Most providers do not sign them.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The raw body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The body parsed as JSON.
    ///
    /// # Errors
    /// If it is not JSON, or has another shape.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }
}

impl AsRef<Identity> for Received {
    fn as_ref(&self) -> &Identity {
        &self.identity
    }
}

/// Without body and headers: payloads are personal, and headers hold signatures.
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

/// The source of a provider's events. A provider's name has no slash, so it is clear where it ends.
pub(super) fn source(provider: &str, tenant: Option<&str>) -> String {
    match tenant {
        Some(tenant) => format!("webhook:{provider}/{tenant}"),
        None => format!("webhook:{provider}"),
    }
}

/// What a handler returns when the provider may get its 200: **after** the commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// The effect and its mark are committed.
    Now,
    /// A duplicate: it was already marked.
    Already,
    /// Not of interest here. It may be delivered again.
    Ignored,
}
