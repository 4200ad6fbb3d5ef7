//! Why a command ended early, and with which exit code.

use std::io;
use std::process::ExitCode;

use semel::relay::OutboxReaderError;
use semel::store::{ErrorKind, StoreError};

/// Why a command ended early. The message is one line and says what to do next.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The command is valid but was not carried out: not found, refused, overtaken, the store failed. Exit code 1.
    NotDone(String),
    /// The command cannot work as given: arguments, URL, missing file. Exit code 2.
    Usage(String),
    /// The reader of our output closed the pipe (`semel ls | head`). Not an error.
    ReaderLeft,
}

impl Failed {
    pub(crate) fn not_done(message: impl Into<String>) -> Self {
        Self::NotDone(message.into())
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    /// Prints the message on stderr.
    pub(crate) fn report(&self) -> ExitCode {
        let (message, code) = match self {
            Self::NotDone(message) => (message, 1),
            Self::Usage(message) => (message, 2),
            Self::ReaderLeft => return ExitCode::SUCCESS,
        };
        let line: Vec<&str> = message.split_whitespace().collect();
        eprintln!("semel: {}", line.join(" "));
        ExitCode::from(code)
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        match error.kind() {
            ErrorKind::Misconfigured => Self::Usage(error.to_string()),
            _ => Self::NotDone(error.to_string()),
        }
    }
}

impl From<OutboxReaderError> for Failed {
    fn from(error: OutboxReaderError) -> Self {
        match error {
            OutboxReaderError::Store(error) => error.into(),
            other => Self::NotDone(other.to_string()),
        }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ReaderLeft,
            _ => Self::NotDone(error.to_string()),
        }
    }
}
