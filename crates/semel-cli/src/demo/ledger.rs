//! The world outside: a file with a line per effect, fsynced before the effect counts as done. It knows nothing
//! of semel, and it is what the demo is judged by.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::thread;

use tokio::sync::{mpsc, oneshot};

use super::plan::IntentNo;

const QUEUE_MAX: usize = 1_024;

type Line = (IntentNo, oneshot::Sender<io::Result<()>>);

/// Appends effects. Cheap to clone.
#[derive(Clone)]
pub(super) struct Ledger(mpsc::Sender<Line>);

impl Ledger {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let (lines, to_write) = mpsc::channel(QUEUE_MAX);
        thread::Builder::new().name("ledger".into()).spawn(move || write(file, to_write))?;
        Ok(Self(lines))
    }

    /// Returns once the line is on disk.
    pub(super) async fn append(&self, intent: IntentNo) -> io::Result<()> {
        let gone = || io::Error::other("the ledger's thread is gone");
        let (done, written) = oneshot::channel();
        self.0.send((intent, done)).await.map_err(|_| gone())?;
        written.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// One fsync for all that came while the last one went on; otherwise the demo would measure the disk.
fn write(mut file: File, mut lines: mpsc::Receiver<Line>) {
    while let Some(first) = lines.blocking_recv() {
        let mut waiting = vec![first];
        while let Ok(next) = lines.try_recv() {
            waiting.push(next);
        }
        // A process killed in the middle of a write leaves half a line; ours starts on a new one.
        let mut text = String::from("\n");
        for (intent, _) in &waiting {
            text.push_str(&format!("{intent}\n"));
        }
        let result = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
        for (_, done) in waiting {
            let result = match &result {
                Ok(()) => Ok(()),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            let _ = done.send(result);
        }
    }
}

/// How many effects each intent had.
#[derive(Default)]
pub(super) struct Counted(HashMap<IntentNo, u32>);

impl Counted {
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let bytes = fs::read(path)?;
        let mut counts = HashMap::new();
        for intent in String::from_utf8_lossy(&bytes).lines().filter_map(|line| line.parse().ok()) {
            *counts.entry(intent).or_default() += 1;
        }
        Ok(Self(counts))
    }

    pub(super) fn of(&self, intent: IntentNo) -> u32 {
        self.0.get(&intent).copied().unwrap_or(0)
    }

    pub(super) fn effects(&self) -> u64 {
        self.0.values().map(|count| u64::from(*count)).sum()
    }

    /// Intents whose effect happened more than once.
    pub(super) fn repeated(&self) -> u64 {
        self.0.values().filter(|count| **count > 1).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_line_is_no_effect_and_a_line_twice_is_two() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        fs::write(&path, "\nintent-000001\nintent-0000\n\nintent-000001\nintent-000002\nintent-00").unwrap();
        let counted = Counted::read(&path).unwrap();
        assert_eq!((counted.effects(), counted.repeated()), (3, 1));
        assert_eq!([0, 1, 2].map(|n| counted.of(IntentNo(n))), [0, 2, 1]);
    }
}
