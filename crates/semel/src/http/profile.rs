//! The same guarantees in three dialects that clients know.

use http::StatusCode;
use http::header::HeaderName;

use super::headers::{IDEMPOTENCY_REPLAYED, IDEMPOTENT_REPLAYED, STRIPE_SHOULD_RETRY, X_SHOULD_RETRY};

/// Which statuses and header names clients get.
///
/// | | classic | ietf | stripe |
/// |---|---|---|---|
/// | same key, other request | 409 | 422 | 400 |
/// | replay | `Idempotency-Replayed` | `Idempotency-Replayed` | `Idempotent-Replayed` |
/// | worth retrying | `x-should-retry` | `x-should-retry` | `Stripe-Should-Retry` |
///
/// Codes, and every other status, are the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Profile {
    /// The same key with another request is a 409.
    #[default]
    Classic,
    /// As in the draft of the IETF's HTTP API working group.
    Ietf,
    /// As Stripe's SDKs expect it.
    Stripe,
}

impl Profile {
    /// All of them, for tables.
    pub const ALL: [Self; 3] = [Self::Classic, Self::Ietf, Self::Stripe];

    /// Its name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Ietf => "ietf",
            Self::Stripe => "stripe",
        }
    }

    /// The profile of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.as_str() == name)
    }

    pub(super) fn mismatch(self) -> StatusCode {
        match self {
            Self::Classic => StatusCode::CONFLICT,
            Self::Ietf => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Stripe => StatusCode::BAD_REQUEST,
        }
    }

    /// The header that marks a replay.
    pub fn replayed(self) -> HeaderName {
        match self {
            Self::Classic | Self::Ietf => IDEMPOTENCY_REPLAYED,
            Self::Stripe => IDEMPOTENT_REPLAYED,
        }
    }

    /// The header that says whether retrying makes sense.
    pub fn should_retry(self) -> HeaderName {
        match self {
            Self::Classic | Self::Ietf => X_SHOULD_RETRY,
            Self::Stripe => STRIPE_SHOULD_RETRY,
        }
    }
}
