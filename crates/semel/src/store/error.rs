//! Errors that say what is known.

use std::error::Error;
use std::fmt;

/// Whether the request that failed was carried out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fate {
    /// It was not.
    NotApplied,
    /// It was; only the answer is missing.
    Applied,
    /// Nobody can tell from here: the connection broke after it was sent, or the disk failed in the commit.
    InDoubt,
}

/// What went wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store cannot be reached, or is not itself (failing over, starting, locked).
    Unavailable,
    /// A bound of ours was hit: the queue is full.
    Busy,
    /// There is no room: disk full, or as many records as were allowed.
    Full,
    /// What was to be stored is larger than the store takes.
    TooLarge,
    /// What is stored cannot be read.
    Corrupt,
    /// The store answers, but it has lost what it knew (flushed, started empty): whatever it is asked, "I never
    /// heard of it" would be a lie. Only a person decides to go on; no outage policy does.
    Lost,
    /// The store was set up in a way that cannot work; starting again will not help.
    Misconfigured,
    /// The store was shut down by this process.
    Closed,
}

/// A store's error: what went wrong, what is known of the request, what to do.
#[derive(Debug)]
pub struct StoreError {
    kind: ErrorKind,
    fate: Fate,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// An error with a message that says what to do next.
    pub fn new(kind: ErrorKind, fate: Fate, message: impl Into<String>) -> Self {
        Self { kind, fate, message: message.into(), source: None }
    }

    /// Adds the driver's own error.
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same error, of a request an earlier try of which may have been carried out.
    pub(crate) fn in_doubt(mut self) -> Self {
        self.fate = Fate::InDoubt;
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What is known of the request.
    pub fn fate(&self) -> Fate {
        self.fate
    }

    /// Whether the same request may succeed a little later.
    pub fn may_retry(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable | ErrorKind::Busy | ErrorKind::Full)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(source) = &self.source {
            write!(f, " ({source})")?;
        }
        match self.fate {
            Fate::NotApplied => Ok(()),
            Fate::Applied => f.write_str("; the request was carried out"),
            Fate::InDoubt => f.write_str("; whether the request was carried out is not known"),
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}
