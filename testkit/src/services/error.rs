//! Errors of servers, for people: one sentence and what to do next.

use std::fmt;

/// A failure to install, start, find or stop a server. The message says what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    message: String,
}

/// The result of dealing with a server.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }

    /// Puts a subject in front of the message.
    #[must_use]
    pub fn of(self, subject: impl fmt::Display) -> Self {
        Self { message: format!("{subject}: {}", self.message) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.to_string())
    }
}
