//! Store errors: what went wrong, and whether the request was carried out.

use std::error::Error;
use std::fmt;

/// Whether the request that failed was carried out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fate {
    /// It was not carried out.
    NotApplied,
    /// It was carried out; only the answer is missing.
    Applied,
    /// Not known: the connection broke after it was sent, or the disk failed during the commit.
    InDoubt,
}

/// What went wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store cannot be reached, or is not ready (failing over, starting, locked).
    Unavailable,
    /// A queue of semel's is full, or another transaction keeps the record locked.
    Busy,
    /// There is no room: the disk is full, or the maximum number of records is reached.
    Full,
    /// The data is larger than the store accepts.
    TooLarge,
    /// Stored data cannot be read.
    Corrupt,
    /// The store answers, but has lost its data (flushed, started empty), so that a missing record proves nothing.
    /// Only a person decides to go on; no outage policy does.
    Lost,
    /// The configuration cannot work; a restart does not help.
    Misconfigured,
    /// The store was shut down by this process.
    Closed,
}

/// A store's error: what went wrong, whether the request was carried out, what to do.
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

    /// The same error, in doubt: an earlier try of the request may have been carried out.
    pub(crate) fn in_doubt(mut self) -> Self {
        self.fate = Fate::InDoubt;
        self
    }

    /// The same error, for another request that shared its fate.
    #[cfg(any(feature = "sqlite", all(feature = "_sql", feature = "saga")))]
    pub(crate) fn again(&self) -> Self {
        let source = self.source.as_ref().map(|source| source.to_string().into());
        Self { kind: self.kind, fate: self.fate, message: self.message.clone(), source }
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the request was carried out.
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
