//! The answers callers got, in a file that outlives their process.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use semel::GuardError;
use semel::store::ErrorKind;

/// The answer one call got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Of which intent.
    pub key: String,
    /// What.
    pub what: What,
}

/// Answers, by what they mean to the judge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// It is done, with this receipt, and the store has it.
    Done(String),
    /// It is done, with this receipt, and the store is still to have it.
    Unstored(String),
    /// It is done, with this receipt, and nothing ran for this call.
    Replayed(String),
    /// The outcome is unknown; it is held.
    Held,
    /// The outcome is not known yet; a lookup will ask.
    Settling,
    /// Somebody is at it.
    InFlight,
    /// The store could not be asked.
    Unavailable,
    /// The store has lost its memory.
    Lost,
    /// Something no caller should see.
    Wrong(String),
}

impl What {
    /// The receipt, where it is done.
    pub fn receipt(&self) -> Option<&str> {
        match self {
            Self::Done(receipt) | Self::Unstored(receipt) | Self::Replayed(receipt) => Some(receipt),
            _ => None,
        }
    }

    pub(super) fn of(error: &GuardError) -> Self {
        match error {
            GuardError::InFlight { .. } => Self::InFlight,
            GuardError::Uncertain { settles_in: Some(_), .. } => Self::Settling,
            GuardError::Uncertain { settles_in: None, .. } => Self::Held,
            GuardError::StoreUnavailable(error) => match error.kind() {
                ErrorKind::Lost => Self::Lost,
                ErrorKind::Unavailable | ErrorKind::Busy => Self::Unavailable,
                kind => Self::Wrong(format!("{kind:?}: {error}")),
            },
            other => Self::Wrong(other.to_string()),
        }
    }

    fn words(&self) -> (&'static str, &str) {
        match self {
            Self::Done(receipt) => ("done", receipt),
            Self::Unstored(receipt) => ("unstored", receipt),
            Self::Replayed(receipt) => ("replayed", receipt),
            Self::Held => ("held", ""),
            Self::Settling => ("settling", ""),
            Self::InFlight => ("in-flight", ""),
            Self::Unavailable => ("unavailable", ""),
            Self::Lost => ("lost", ""),
            Self::Wrong(why) => ("wrong", why),
        }
    }
}

/// Appends the answers callers get. One write a line: what a killed process wrote counts as answered.
#[derive(Clone, Debug)]
pub struct Answers {
    file: Arc<File>,
}

impl Answers {
    /// Opens the book in `dir`; several processes may.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(dir.join("answers"))?;
        Ok(Self { file: Arc::new(file) })
    }

    pub(super) fn note(&self, key: &str, what: &What) -> io::Result<()> {
        let (word, more) = what.words();
        let line = format!("{key}\t{word}\t{}\n", more.replace(['\n', '\t'], " "));
        (&*self.file).write_all(line.as_bytes())
    }

    /// All of it.
    pub fn read(dir: &Path) -> io::Result<Vec<Answer>> {
        let text = std::fs::read_to_string(dir.join("answers"))?;
        Ok(text.lines().filter_map(parse).collect())
    }
}

fn parse(line: &str) -> Option<Answer> {
    let mut words = line.splitn(3, '\t');
    let (key, word, more) = (words.next()?, words.next()?, words.next()?.to_owned());
    let what = match word {
        "done" => What::Done(more),
        "unstored" => What::Unstored(more),
        "replayed" => What::Replayed(more),
        "held" => What::Held,
        "settling" => What::Settling,
        "in-flight" => What::InFlight,
        "unavailable" => What::Unavailable,
        "lost" => What::Lost,
        _ => What::Wrong(more),
    };
    Some(Answer { key: key.to_owned(), what })
}
