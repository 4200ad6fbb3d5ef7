//! After a restart: sends what an earlier run did not finish.

use std::fmt;

use bytes::Bytes;
use http::{Method, Request, Response, Uri};
use http_body::Body;
use http_body_util::Full;
use tower_service::Service;

use super::DurableClient;
use super::headers;
use super::journal::{Claimed, JournalState};
use super::send::new_owner;
use crate::http::body::BufferedBody;
use crate::http::client::error::{BoxError, ClientError, GaveUp};
use crate::http::client::prepare::{Judged, Prepared, write_key};
use crate::intent::key::Key;
use crate::store::StoreError;

/// The result of [`DurableClient::resume`].
#[non_exhaustive]
pub struct Resume<R: Body> {
    /// Each resumed intent, oldest first.
    pub ended: Vec<Resumed<R>>,
    /// The limit was reached; there may be more.
    pub more: bool,
}

/// One resumed intent.
#[non_exhaustive]
pub struct Resumed<R: Body> {
    /// Its key, as it is in the journal. Not for logs.
    pub key: String,
    /// Its result.
    pub end: End<R>,
}

/// The result of one intent.
#[non_exhaustive]
pub enum End<R: Body> {
    /// There is an answer, and it is in the journal.
    Answered(Box<Response<BufferedBody<R>>>),
    /// It took effect, and its answer is lost. That is in the journal: it is done, and not sent again.
    AnswerLost(Box<GaveUp>),
    /// Still no answer. It stays in the journal: to be resumed, or for a person if a retry does not help.
    NoAnswer(ClientError),
    /// It was not sent: the server may have forgotten the key. It may have taken effect; it waits for a person.
    Expired,
    /// The row in the journal is not a valid request. It was not sent; it waits for a person.
    Unreadable,
}

impl<S> DurableClient<S> {
    /// Sends the intents in the journal that have no answer, oldest first, one after the other, at most `limit`.
    ///
    /// Each gets a new retry budget; none is sent beyond the server's retention, counted from when it was written to
    /// the journal. Intents that another call or process is sending are skipped. An error of the journal ends it
    /// early; a claimed intent is free when its lease expires.
    pub async fn resume<R>(&self, limit: usize) -> Result<Resume<R>, StoreError>
    where
        S: Service<Request<Full<Bytes>>, Response = Response<R>> + Clone,
        S::Error: Into<BoxError>,
        R: Body<Data = Bytes>,
        R::Error: Into<BoxError>,
    {
        let (mut ended, mut behind) = (Vec::new(), i64::MIN);
        while ended.len() < limit {
            let (owner, judged) = (new_owner(), self.client.judged_now());
            let Some(claimed) = self.journal.claim_next(behind, owner, self.limits.lease).await? else {
                return Ok(Resume { ended, more: false });
            };
            behind = claimed.seq;
            let key = claimed.key.clone();
            let end = if claimed.sendable.is_zero() {
                End::Expired
            } else if let Some(prepared) = self.prepared(claimed, judged) {
                match self.carry_out(&prepared, owner).await {
                    Ok(response) => End::Answered(Box::new(response)),
                    Err(ClientError::AnswerLost(gave_up)) => End::AnswerLost(gave_up),
                    Err(error) => End::NoAnswer(error),
                }
            } else {
                let why = "the row in the journal is not a valid request".to_owned();
                self.journal.leave(&key, owner, JournalState::Held, 0, why).await?;
                End::Unreadable
            };
            ended.push(Resumed { key, end });
        }
        Ok(Resume { ended, more: true })
    }

    /// The request of a row, with its secrets supplied again; `None` if the row is not a valid request.
    fn prepared(&self, claimed: Claimed, judged: Judged) -> Option<Prepared> {
        let key = Key::new(claimed.key).ok()?;
        let mut request = Request::new(());
        *request.method_mut() = Method::from_bytes(claimed.method.as_bytes()).ok()?;
        *request.uri_mut() = claimed.uri.parse::<Uri>().ok()?;
        *request.headers_mut() = headers::map(&claimed.headers)?;
        let (mut head, ()) = request.into_parts();
        if let Some(credentials) = &self.credentials {
            credentials(&head.uri, &mut head.headers);
        }
        // The stored header, spelled as before; written again if the row has none (the header's name has changed).
        if !head.headers.contains_key(&self.rules.key) {
            write_key(&mut head.headers, &self.rules.key, &key).ok()?;
        }
        Some(Prepared {
            key,
            head,
            body: claimed.body,
            sent_before: true,
            sendable: claimed.sendable,
            judged,
        })
    }
}

impl<R: Body<Data = Bytes>> fmt::Debug for End<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered(response) => write!(f, "Answered({})", response.status()),
            Self::AnswerLost(_) => f.write_str("AnswerLost"),
            Self::NoAnswer(error) => write!(f, "NoAnswer({error})"),
            Self::Expired => f.write_str("Expired"),
            Self::Unreadable => f.write_str("Unreadable"),
        }
    }
}

impl<R: Body<Data = Bytes>> fmt::Debug for Resumed<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Through `Key`, which shows a short hash.
        f.debug_struct("Resumed").field("key", &Key::new(self.key.as_str())).field("end", &self.end).finish()
    }
}

impl<R: Body<Data = Bytes>> fmt::Debug for Resume<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resume").field("ended", &self.ended).field("more", &self.more).finish()
    }
}
