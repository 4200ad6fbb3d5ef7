//! The seam to a provider's way of signing.

use std::sync::Arc;

use http::HeaderMap;

/// Says whether a request is the provider's, and which event it brings.
///
/// The law: it looks at the body as it came, byte for byte, and at nothing of what the body says before the signature is
/// found right. It does no I/O, reads no clock and does not panic, whatever it is given.
pub trait Verifier: Send + Sync + 'static {
    /// Checks a request that arrived at `now_s`, in seconds since 1970.
    ///
    /// # Errors
    /// When it is not to be believed, or names no event.
    fn verify(&self, headers: &HeaderMap, body: &[u8], now_s: u64) -> Result<Verified, VerifyError>;
}

impl<V: Verifier + ?Sized> Verifier for Arc<V> {
    fn verify(&self, headers: &HeaderMap, body: &[u8], now_s: u64) -> Result<Verified, VerifyError> {
        (**self).verify(headers, body, now_s)
    }
}

/// What is known of a request whose signature is right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verified {
    /// What the provider calls the event: the same each time it is sent.
    pub id: String,
    /// What kind of event it is, where the provider says so.
    pub kind: Option<String>,
    /// When it was signed, in seconds since 1970, where the provider says so.
    pub signed_at_s: Option<u64>,
}

/// Why a request is not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// It is not signed in the way of the provider.
    #[error("not signed in the way of the provider: {0}")]
    Malformed(&'static str),
    /// It is well formed, and no secret makes this signature.
    #[error("no secret makes this signature")]
    Forged,
    /// The signature is right, and was made too long ago or too far ahead: somebody sends again what was caught, or a clock
    /// is wrong.
    #[error("signed outside of the tolerance")]
    Stale,
    /// The signature is right, but there is no id where one was to be: a matter of configuration.
    #[error("it does not say which event it is")]
    MissingId,
}

/// Why a verifier cannot be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifierError {
    /// No secret, or more than [`SECRETS_MAX`](super::SECRETS_MAX).
    #[error("a verifier has 1 to {max} secrets; this one has {count}", max = super::SECRETS_MAX)]
    Count {
        /// How many there were.
        count: usize,
    },
    /// A secret that is none. It is not shown.
    #[error("{why}")]
    Secret {
        /// What a secret is like.
        why: String,
    },
    /// A header's name that is none.
    #[error("{name:?} is no header's name")]
    Header {
        /// What it was.
        name: String,
    },
    /// A place in a JSON document that is none.
    #[error("{pointer:?} is no place in a JSON document: it begins with /")]
    Pointer {
        /// What it was.
        pointer: String,
    },
}
