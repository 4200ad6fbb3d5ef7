//! An append-and-fsync ledger: the independent judge of how often an effect happened.
//!
//! A test that asks the system under test whether an effect ran once has asked the suspect. The
//! effect therefore writes its own line here, in a file that knows nothing of semel: one `write`
//! with `O_APPEND`, then `fdatasync`. The line survives a SIGKILL that comes right after, and
//! lines of several processes never interleave.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// The longest entry accepted. Small appends are what the kernel keeps in one piece.
pub const ENTRY_BYTES_MAX: usize = 4096;

/// A ledger opened for appending. Cheap to open again; may be shared by threads and processes.
#[derive(Debug)]
pub struct Ledger {
    file: File,
}

impl Ledger {
    /// Opens the ledger, creating it when it is not there.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file })
    }

    /// Appends one entry. When this returns `Ok` the entry is on disk.
    ///
    /// An entry is one line: a newline in it, an empty or an over-long one is refused.
    pub fn append(&self, entry: &str) -> io::Result<()> {
        if entry.is_empty() || entry.contains('\n') || entry.len() > ENTRY_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a ledger entry is one non-empty line of at most 4096 bytes",
            ));
        }
        let line = format!("{entry}\n");
        // One write, not `write_all`: a second write after a short one would let another process
        // in between, and the entry would be counted as two wrong ones.
        let written = (&self.file).write(line.as_bytes())?;
        if written != line.len() {
            return Err(io::Error::new(io::ErrorKind::WriteZero, "the ledger's disk is full"));
        }
        self.file.sync_data()
    }
}

/// What a ledger says.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Entries {
    lines: Vec<String>,
    torn: Option<String>,
}

impl Entries {
    /// Reads the ledger. One that was never written to has no entries.
    pub fn read(path: impl AsRef<Path>) -> io::Result<Self> {
        match std::fs::read(path) {
            Ok(bytes) => Ok(Self::parse(&String::from_utf8_lossy(&bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    fn parse(text: &str) -> Self {
        let (whole, rest) = match text.rfind('\n') {
            Some(end) => text.split_at(end + 1),
            None => ("", text),
        };
        Self {
            lines: whole.lines().map(str::to_owned).collect(),
            torn: (!rest.is_empty()).then(|| rest.to_owned()),
        }
    }

    /// All entries in the order in which they were appended.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// How many times this entry was appended.
    #[must_use]
    pub fn count(&self, entry: &str) -> usize {
        self.lines.iter().filter(|line| *line == entry).count()
    }

    /// The entries that are there more than once, with their counts.
    #[must_use]
    pub fn duplicates(&self) -> BTreeMap<&str, usize> {
        let mut counts = self.counts();
        counts.retain(|_, count| *count > 1);
        counts
    }

    /// How many different entries there are.
    #[must_use]
    pub fn distinct(&self) -> usize {
        self.counts().len()
    }

    /// A last line without its newline: a writer died in the middle. It is not an entry.
    #[must_use]
    pub fn torn(&self) -> Option<&str> {
        self.torn.as_deref()
    }

    fn counts(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for line in &self.lines {
            *counts.entry(line.as_str()).or_insert(0) += 1;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_of_whole_lines() {
        let table: &[(&str, usize, usize, Option<&str>)] = &[
            // text, count of "pay-1", distinct, torn
            ("", 0, 0, None),
            ("pay-1\n", 1, 1, None),
            ("pay-1\npay-1\n", 2, 1, None),
            ("pay-1\npay-11\n", 1, 2, None),
            ("pay-1\npay-1", 1, 1, Some("pay-1")),
            ("pay-", 0, 0, Some("pay-")),
        ];
        for (text, count, distinct, torn) in table {
            let entries = Entries::parse(text);
            assert_eq!(entries.count("pay-1"), *count, "{text:?}");
            assert_eq!(entries.distinct(), *distinct, "{text:?}");
            assert_eq!(entries.torn(), *torn, "{text:?}");
        }
    }

    #[test]
    fn a_double_effect_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        assert_eq!(Entries::read(&path).unwrap(), Entries::default());
        let ledger = Ledger::open(&path).unwrap();
        for entry in ["a", "b", "a"] {
            ledger.append(entry).unwrap();
        }
        let entries = Entries::read(&path).unwrap();
        assert_eq!(entries.lines(), ["a", "b", "a"]);
        assert_eq!(entries.duplicates(), BTreeMap::from([("a", 2)]));
    }

    #[test]
    fn what_is_not_one_line_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        let ledger = Ledger::open(&path).unwrap();
        let longest = "x".repeat(ENTRY_BYTES_MAX);
        ledger.append(&longest).unwrap();
        for bad in ["", "a\nb", "\n", &format!("{longest}x")] {
            assert!(ledger.append(bad).is_err());
        }
        assert_eq!(Entries::read(&path).unwrap().lines(), [longest]);
    }

    #[test]
    fn writers_side_by_side_lose_and_tear_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    let ledger = Ledger::open(path).unwrap();
                    for entry in 0..50 {
                        ledger.append(&format!("{writer}-{entry}")).unwrap();
                    }
                });
            }
        });
        let entries = Entries::read(&path).unwrap();
        assert_eq!(entries.lines().len(), 200);
        assert_eq!(entries.distinct(), 200);
        assert_eq!(entries.torn(), None);
    }
}
