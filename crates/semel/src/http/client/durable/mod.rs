//! Intents that survive a restart: written down before they are sent.
//!
//! ```text
//!  send ──▶ written down (flushed) ──▶ attempts ──▶ answer written down ──▶ answer
//!                 ╰── killed anywhere from here on ──▶ resume: the same request, the same key
//! ```
//!
//! ```no_run
//! # async fn pay(token: String) -> Result<(), Box<dyn std::error::Error>> {
//! use semel::Key;
//! use semel::http::client::{IdempotentClient, durable::DurableClient};
//!
//! let client = DurableClient::builder(IdempotentClient::http())
//!     .with_credentials(move |_uri, headers| {
//!         headers.insert("authorization", token.parse().expect("a token is a header's value"));
//!     })
//!     .open("intents.db")
//!     .await?;
//!
//! // After every start, and every now and then: what an earlier run did not finish.
//! for resumed in client.resume(100).await?.ended {
//!     println!("{resumed:?}");
//! }
//!
//! let request = http::Request::post("http://127.0.0.1:8080/payments")
//!     .extension(Key::new("order-1001")?)
//!     .body(r#"{"amount": 4200}"#.to_owned())?;
//! let response = client.send(request).await?;
//! # Ok(()) }
//! ```
//!
//! - **One journal, one key, one intent.** The same key with another request is refused before anything is sent;
//!   with the same request it goes on, or gets the answer that is already there.
//! - **Several processes** on one machine may share a file: whoever sends an intent has it claimed. A claim of a
//!   process that died is free when its lease runs out. Even a claim that is lost while sending does no harm: both
//!   send the same key.
//! - **Secrets stay out.** `Authorization`, `Cookie` and `Proxy-Authorization` are not written down but asked for
//!   when an intent is resumed. URIs and bodies are written down as they are; the file is made for its owner only.
//! - **Nothing is sent again beyond the server's retention.** Such an intent is reported and kept for a person. A clock of this
//!   machine that is set back makes no intent younger; where it cannot be known how old they are, none is sent again.
//! - **Once written down, it is going to be sent**: by this call or by a later [`resume`](DurableClient::resume),
//!   also if the caller was told `NotSent` or stopped waiting. [`forget`](DurableClient::forget) takes it back.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::HeaderName;
use http::{HeaderMap, Uri};

use self::headers::HeaderRules;
use self::journal::{Journal, Place, span};
use super::error::{ClientError, InvalidRequest};
use super::service::IdempotentClient;
use crate::intent::key::Key;
use crate::store::StoreError;

mod builder;
mod headers;
mod journal;
mod resume;
mod send;

pub use builder::DurableBuilder;
pub use journal::JournalState;
#[doc(hidden)]
pub use journal::{Disk, MemoryFile};
pub use resume::{End, Resume, Resumed};
pub use send::{FromJournal, Unrecorded};

type Credentials = Arc<dyn Fn(&Uri, &mut HeaderMap) + Send + Sync>;

/// An [`IdempotentClient`] that writes every intent down first. Cheap to clone. See the [module](self).
#[derive(Clone)]
pub struct DurableClient<S> {
    client: IdempotentClient<S>,
    journal: Journal,
    rules: Arc<HeaderRules>,
    credentials: Option<Credentials>,
    place: Place,
}

impl<S> DurableClient<S> {
    /// Settings first.
    pub fn builder(client: IdempotentClient<S>) -> DurableBuilder<S> {
        DurableBuilder::new(client)
    }

    /// The oldest intents without an answer, at most `limit`: those to be resumed, and those that wait for a
    /// person.
    pub async fn unfinished(&self, limit: u32) -> Result<Vec<Unfinished>, StoreError> {
        let listed = self.journal.unfinished(limit).await?;
        let moment = |ms| UNIX_EPOCH + span(ms);
        let unfinished = listed.into_iter().filter_map(|listed| {
            Some(Unfinished {
                // A key that is none was not written by us; `resume` holds such a row and says so.
                key: Key::new(listed.key).ok()?,
                state: listed.state,
                created: moment(listed.created_ms),
                until: moment(listed.until_ms),
                attempts: listed.attempts,
                claimed: listed.claimed,
                why: listed.why,
                method: listed.method,
                uri: listed.uri,
            })
        });
        Ok(unfinished.collect())
    }

    /// Takes an intent out of the journal: it is not sent any more, and its answer is not kept. `false` where it
    /// is not there, or is just being sent. What was sent before may have taken effect.
    pub async fn forget(&self, key: &Key) -> Result<bool, StoreError> {
        self.journal.forget(key).await
    }
}

impl<S> fmt::Debug for DurableClient<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableClient").field("client", &self.client).finish_non_exhaustive()
    }
}

/// An intent without an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Unfinished {
    /// Its key.
    pub key: Key,
    /// Whether it is going to be resumed, or waits for a person.
    pub state: JournalState,
    /// When it was written down.
    pub created: SystemTime,
    /// It is not sent after this.
    pub until: SystemTime,
    /// How often it was sent, as far as that was written down.
    pub attempts: u32,
    /// Somebody is sending it now.
    pub claimed: bool,
    /// What the last round of attempts ended in.
    pub why: Option<String>,
    /// The request's method.
    pub method: String,
    /// Where it goes.
    pub uri: String,
}

/// Why a [`DurableClient`] has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DurableError {
    /// The request cannot be sent as it is. It was not written down.
    #[error("nothing was sent: {0}")]
    Invalid(#[source] InvalidRequest),
    /// Nobody said what becomes of this header. It was not written down.
    #[error(
        "nothing was sent: whether the header {0} is to be written down is not known; name it in `store_headers`, or in `give_again` if it is a secret"
    )]
    Header(HeaderName),
    /// The request carries what must not be written down, and there would be nobody to give it again.
    #[error(
        "nothing was sent: the header {0} is not written down; say with `with_credentials` where it comes from when the intent is resumed"
    )]
    NoCredentials(HeaderName),
    /// A password in the URI would be written down.
    #[error("nothing was sent: the URI has to be absolute and without user and password")]
    Uri,
    /// The key is in the journal, for another request. Nothing was sent.
    #[error("nothing was sent: the journal has this key for another request; a key stands for one request")]
    Mismatch,
    /// Another call or another process is sending it.
    #[error("it is just being sent by somebody else; ask again after {lease_left:?}")]
    Elsewhere {
        /// When its claim runs out at the latest, unless it is renewed.
        lease_left: Duration,
    },
    /// It has been in the journal for so long that the server may have forgotten it. It was not sent again.
    #[error("it was not sent again: the server may have forgotten the key; find out whether it took effect")]
    Expired,
    /// As many intents without an answer as the journal takes. Nothing was sent.
    #[error(
        "nothing was sent: the journal has {intents_max} intents without an answer; resume or forget some"
    )]
    Full {
        /// The bound.
        intents_max: u32,
    },
    /// The journal cannot be used. Nothing was sent.
    #[error("nothing was sent: {0}")]
    Journal(#[from] StoreError),
    /// It was sent, and there is no answer. It stays in the journal.
    #[error(transparent)]
    Client(#[from] ClientError),
}
