//! Intents that survive a restart: written to a journal before they are sent.
//!
//! ```text
//!  send ──▶ journaled (flushed) ──▶ attempts ──▶ answer journaled ──▶ answer
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
//! // After every start, and periodically: what an earlier run did not finish.
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
//!   with the same request it continues, or gets the stored answer.
//! - **Several processes** on one machine may share a file: a sender claims its intent. The claim of a process that
//!   died is free when its lease expires. Even a claim that is lost while sending does no harm: both send the same
//!   key.
//! - **Secrets stay out.** `Authorization`, `Cookie` and `Proxy-Authorization` are not stored but requested again
//!   when an intent is resumed. URIs and bodies are stored as they are; only the owner of the file can read it.
//! - **Nothing is sent beyond the server's retention.** Such an intent is reported and kept for a person. Setting this
//!   machine's clock back makes no intent younger; if their age cannot be known, none is sent again.
//! - **Once in the journal, it will be sent**: by this call or by a later [`resume`](DurableClient::resume), even if
//!   the caller got `NotSent` or stopped waiting. [`forget`](DurableClient::forget) removes it.
//!
//! | module | what it decides |
//! |---|---|
//! | `builder` | the settings |
//! | `send` | writes an intent to the journal, sends it, writes the answer |
//! | `resume` | sends the intents that a process left unfinished |
//! | `headers` | which headers are stored, which are supplied again, which belong to one attempt |
//! | `journal` | the journal's SQLite file |

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::HeaderName;
use http::{HeaderMap, Uri};

use self::headers::HeaderRules;
use self::journal::{Journal, JournalLimits, span};
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
#[cfg(feature = "fault-injection")]
#[doc(hidden)]
pub use journal::{Disk, MemoryFile};
pub use resume::{End, Resume, Resumed};
pub use send::{FromJournal, Unrecorded};

type Credentials = Arc<dyn Fn(&Uri, &mut HeaderMap) + Send + Sync>;

/// An [`IdempotentClient`] that writes every intent to a journal first. Cheap to clone. See the [module](self).
#[derive(Clone)]
pub struct DurableClient<S> {
    client: IdempotentClient<S>,
    journal: Journal,
    rules: Arc<HeaderRules>,
    credentials: Option<Credentials>,
    limits: JournalLimits,
}

impl<S> DurableClient<S> {
    /// Starts from a client.
    pub fn builder(client: IdempotentClient<S>) -> DurableBuilder<S> {
        DurableBuilder::new(client)
    }

    /// The oldest intents without an answer, at most `limit`: those to resume, and those that wait for a person.
    pub async fn unfinished(&self, limit: u32) -> Result<Vec<Unfinished>, StoreError> {
        let listed = self.journal.unfinished(limit).await?;
        let moment = |ms| UNIX_EPOCH + span(ms);
        let unfinished = listed.into_iter().filter_map(|listed| {
            Some(Unfinished {
                // An invalid key was not written by semel; `resume` reports such a row as unreadable.
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

    /// Removes an intent from the journal: it is not sent again, and its answer is not kept. `false` if it is not
    /// there, or is being sent now. What was sent before may have taken effect.
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
    /// Whether it will be resumed, or waits for a person.
    pub state: JournalState,
    /// When it was written to the journal.
    pub created: SystemTime,
    /// It is not sent after this.
    pub until: SystemTime,
    /// How often it was sent, as far as that was recorded.
    pub attempts: u32,
    /// A call or a process is sending it now.
    pub claimed: bool,
    /// Why the last round of attempts ended.
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
    /// The request cannot be sent as it is. It is not in the journal.
    #[error("nothing was sent: {0}")]
    Invalid(#[source] InvalidRequest),
    /// No rule says whether this header may be stored. The request is not in the journal.
    #[error(
        "nothing was sent: no rule says whether to store the header {0}; name it in `store_headers`, or in \
         `give_again` if it is a secret"
    )]
    Header(HeaderName),
    /// The request has a secret that must not be stored, and nothing could supply it on resume.
    #[error(
        "nothing was sent: the header {0} is a secret and is not stored; set `with_credentials` to supply it when \
         the intent is resumed"
    )]
    NoCredentials(HeaderName),
    /// A password in the URI would be stored.
    #[error("nothing was sent: the URI must be absolute and without user and password")]
    Uri,
    /// The journal has the key for another request. Nothing was sent.
    #[error(
        "nothing was sent: the journal has this key for another request; use a new key for a new request"
    )]
    Mismatch,
    /// Another call or another process is sending it.
    #[error("another call or process is sending this intent; retry after {lease_left:?}")]
    Elsewhere {
        /// When its lease expires at the latest, unless it is renewed.
        lease_left: Duration,
    },
    /// It has been in the journal for so long that the server may have forgotten it. It was not sent again.
    #[error("it was not sent again: the server may have forgotten the key; find out whether it took effect")]
    Expired,
    /// The journal's limit of intents without an answer is reached. Nothing was sent.
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
