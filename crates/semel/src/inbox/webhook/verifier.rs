//! The trait for a provider's signature scheme.

use std::sync::Arc;

use http::HeaderMap;

/// Checks that a request comes from the provider, and finds its event id.
///
/// The law: it checks the signature over the raw body, byte for byte, and parses the body only after that. It does no
/// I/O, reads no clock and never panics on malformed input.
pub trait Verifier: Send + Sync + 'static {
    /// Checks a request that arrived at `now_s`, in seconds since 1970.
    ///
    /// # Errors
    /// If the request is not authentic, or has no event id.
    fn verify(&self, headers: &HeaderMap, body: &[u8], now_s: u64) -> Result<Verified, VerifyError>;
}

impl<V: Verifier + ?Sized> Verifier for Arc<V> {
    fn verify(&self, headers: &HeaderMap, body: &[u8], now_s: u64) -> Result<Verified, VerifyError> {
        (**self).verify(headers, body, now_s)
    }
}

/// What is known of a request with a valid signature.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verified {
    /// The provider's id of the event: the same on each delivery.
    pub id: String,
    /// The kind of event, if the provider sends it.
    pub kind: Option<String>,
    /// When it was signed, in seconds since 1970, if the provider sends it.
    pub signed_at_s: Option<u64>,
}

/// Why a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// It does not follow the provider's signature scheme.
    #[error("the request does not follow the provider's signature scheme: {0}")]
    Malformed(&'static str),
    /// It is well formed, but no secret matches the signature.
    #[error("the signature matches none of the configured secrets")]
    Forged,
    /// The signature is valid, but too old or too far in the future: a replay, or a wrong clock.
    #[error("the signature's timestamp is outside the tolerance")]
    Stale,
    /// The signature is valid, but there is no id at the configured location: a configuration error.
    #[error("the request has no event id at the configured location")]
    MissingId,
}

/// Why a verifier cannot be created.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifierError {
    /// No secret, or more than [`SECRETS_MAX`](super::SECRETS_MAX).
    #[error("a verifier must have 1 to {max} secrets; this one has {count}", max = super::SECRETS_MAX)]
    Count {
        /// How many there were.
        count: usize,
    },
    /// An invalid secret. It is not shown.
    #[error("{why}")]
    Secret {
        /// What a secret must look like.
        why: String,
    },
    /// An invalid header name.
    #[error("{name:?} is not a valid header name")]
    Header {
        /// What it was.
        name: String,
    },
    /// An invalid JSON pointer.
    #[error("{pointer:?} is not a JSON pointer: it must begin with /")]
    Pointer {
        /// What it was.
        pointer: String,
    },
}
