//! Errors that say what is known about the effect.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::Response;

use super::decide::Why;
use super::response_class::ResponseClass;
use crate::intent::key::Key;

/// Any error of a transport.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// There is no answer to the intent. What is known instead:
///
/// | | the effect | what to do |
/// |---|---|---|
/// | `Invalid` | did not happen | fix the request; nothing was sent |
/// | `NotSent` | did not happen | retry later with the same key, or give up |
/// | `InDoubt` | may have happened | retry with the same key before the server's retention ends; never use a new one |
/// | `AnswerLost` | happened | nothing: it is done; read its result another way |
/// | `Refused` | see [`GaveUp::response`] | as the problem's code says |
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError {
    /// The request cannot be sent as it is.
    Invalid(InvalidRequest),
    /// No attempt took effect: there was no connection, or the server said it did nothing.
    NotSent(Box<GaveUp>),
    /// It was sent, and there is no answer that shows whether it took effect. To continue later, add
    /// [`GaveUp::key`] and [`FirstSent`](super::FirstSent) to the same request.
    InDoubt(Box<GaveUp>),
    /// The server says that it took effect, and that its answer is lost. Do not send it again, least of all with a new
    /// key. There is a response: the problem.
    AnswerLost(Box<GaveUp>),
    /// The server answered with a problem, and no attempt is in doubt. There is a response.
    Refused(Box<GaveUp>),
}

/// What was tried before giving up.
#[derive(Debug)]
#[non_exhaustive]
pub struct GaveUp {
    /// The key of the intent.
    pub key: Key,
    /// Why there was no further attempt.
    pub why: Why,
    /// Every attempt.
    pub attempts: Attempts,
    /// The last answer, if the last attempt got one. Its body is cut off at the policy's `answer_bytes_max`.
    pub response: Option<Response<Bytes>>,
    /// The transport's error, if the last attempt failed with one.
    pub source: Option<BoxError>,
}

impl ClientError {
    /// What was tried; `None` if nothing was.
    pub fn gave_up(&self) -> Option<&GaveUp> {
        match self {
            Self::Invalid(_) => None,
            Self::NotSent(gave_up)
            | Self::InDoubt(gave_up)
            | Self::AnswerLost(gave_up)
            | Self::Refused(gave_up) => Some(gave_up),
        }
    }

    /// The last answer, if there was one.
    pub fn response(&self) -> Option<&Response<Bytes>> {
        self.gave_up()?.response.as_ref()
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (known, gave_up) = match self {
            Self::Invalid(invalid) => return write!(f, "nothing was sent: {invalid}"),
            Self::NotSent(gave_up) => ("nothing happened", gave_up),
            Self::InDoubt(gave_up) => {
                ("it may have taken effect; retry with the same key, never with a new one", gave_up)
            }
            Self::AnswerLost(gave_up) => ("it took effect, so do not send it again", gave_up),
            Self::Refused(gave_up) => ("the server refused it", gave_up),
        };
        write!(f, "{known}: {} after {} attempts", gave_up.why, gave_up.attempts.count())?;
        if let Some(response) = &gave_up.response {
            write!(f, ", the last answered with {}", response.status())?;
        }
        if let Some(source) = &gave_up.source {
            write!(f, ", the last with an error: {source}")?;
        }
        Ok(())
    }
}

impl Error for ClientError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Invalid(invalid) => Some(invalid),
            _ => self.gave_up()?.source.as_deref().map(|source| source as _),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answered => "no answer to the intent itself",
            Self::ServerSaysNo => "the server forbids a retry",
            Self::Mismatch => "the key was used for another request",
            Self::Uncertain => "the server does not know whether it took effect",
            Self::AnswerLost => "its answer is lost",
            Self::Problem(code) => code.as_str(),
            Self::Attempts => "the limit of attempts is reached",
            Self::Time => "the time limit is reached",
            Self::Retention => "the server may have forgotten the key by the next attempt",
        })
    }
}

/// Why a request cannot be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// The value of the key header is not a valid key.
    #[error("the request's own key is invalid: {0}")]
    Key(String),
    /// The header and the extension have different keys.
    #[error("the request has one key in its header and another one in its extensions; set only one")]
    TwoKeys,
    /// Every attempt repeats the body, so it is kept in memory.
    #[error("the request's body is larger than {bytes_max} bytes; raise `body_bytes_max`, or send less")]
    BodyTooLarge {
        /// The bound.
        bytes_max: usize,
    },
    /// The body cannot be repeated.
    #[error("the request's body could not be read to its end, or has trailers")]
    BodyUnreadable,
}

/// One attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ClientAttempt {
    /// When it began, counted from the start of the first.
    pub began: Duration,
    /// How long it took.
    pub took: Duration,
    /// Its result.
    pub seen: ResponseClass,
}

/// The attempts of one intent, in their order. Also in the extensions of every response.
///
/// ```
/// # use semel::http::client::Attempts;
/// # let response = http::Response::new(());
/// let attempts = response.extensions().get::<Attempts>().map_or(0, Attempts::count);
/// # assert_eq!(attempts, 0);
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Attempts(pub(super) Vec<ClientAttempt>);

impl Attempts {
    /// How many there were; [`ATTEMPTS_MAX`](super::ATTEMPTS_MAX) bounds it.
    pub fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }
}

impl std::ops::Deref for Attempts {
    type Target = [ClientAttempt];

    fn deref(&self) -> &[ClientAttempt] {
        &self.0
    }
}
