//! How calls go wrong, by a seed, what is asked for, and how often it was.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

/// Most calls that are counted apart.
const CALLS_MAX: usize = 100_000;
/// A slow answer, and one that the client does not wait for.
const SLOW: Duration = Duration::from_millis(300);
const LOST: Duration = Duration::from_secs(60);

/// How one call goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Not at all.
    None,
    /// A 500 instead of the effect.
    FailsBefore,
    /// A 500 after the effect.
    FailsAfter,
    /// The request gets lost: no effect, and no answer.
    LostBefore,
    /// The answer gets lost: the effect happened.
    LostAfter,
    /// Slow, and then as it should be.
    Slow,
}

/// The faults of one server; without a seed there are none.
#[derive(Debug, Default)]
pub struct Faults {
    seed: Option<u64>,
    calls: Mutex<HashMap<String, u32>>,
}

impl Faults {
    /// By this seed.
    pub fn new(seed: Option<u64>) -> Self {
        Self { seed, calls: Mutex::default() }
    }

    /// How this call goes wrong. The same call the next time may go otherwise.
    pub fn of(&self, call: &str) -> Fault {
        let Some(seed) = self.seed else { return Fault::None };
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.len() >= CALLS_MAX {
            return Fault::None;
        }
        let nth = calls.entry(call.to_owned()).or_default();
        *nth = nth.saturating_add(1);
        match random(&format!("{seed}/{call}/{nth}")) % 20 {
            0 => Fault::FailsBefore,
            1 => Fault::FailsAfter,
            2 => Fault::LostBefore,
            3 => Fault::LostAfter,
            4 | 5 => Fault::Slow,
            _ => Fault::None,
        }
    }
}

impl Fault {
    /// The effect with this fault around it.
    pub async fn around(self, effect: impl Future<Output = Response>) -> Response {
        match self {
            Self::None => effect.await,
            Self::Slow => {
                tokio::time::sleep(SLOW).await;
                effect.await
            }
            Self::FailsBefore => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            Self::FailsAfter => {
                drop(effect.await);
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
            Self::LostBefore => never().await,
            Self::LostAfter => {
                drop(effect.await);
                never().await
            }
        }
    }
}

/// FNV-1a, mixed: the standard library's hashes may differ from one release to the next.
fn random(text: &str) -> u64 {
    let hash = text.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    (hash ^ (hash >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33
}

/// An answer that comes when the client has given up.
async fn never() -> Response {
    tokio::time::sleep(LOST).await;
    StatusCode::GATEWAY_TIMEOUT.into_response()
}
