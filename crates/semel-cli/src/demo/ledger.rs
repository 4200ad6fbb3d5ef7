//! The ledger: a file with one line per effect, fsynced before the effect counts as made. It is independent of semel,
//! and the demo's result is counted from it.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::thread;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::plan::IntentNo;

const QUEUE_MAX: usize = 1_024;

/// One charge, in the ledger and in the service's answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Charge {
    pub(super) id: String,
    /// The key that the client sent; the service does not act on it.
    pub(super) key: String,
    pub(super) amount: u64,
}

type Waiting<Line> = (Line, oneshot::Sender<io::Result<()>>);

/// Appends lines. Cheap to clone.
#[derive(Clone)]
pub(super) struct Ledger<Line = Charge>(mpsc::Sender<Waiting<Line>>);

impl<Line: Serialize + Send + 'static> Ledger<Line> {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let (lines, to_write) = mpsc::channel(QUEUE_MAX);
        thread::Builder::new().name("ledger".into()).spawn(move || write(file, to_write))?;
        Ok(Self(lines))
    }

    /// Returns once the line is on disk.
    pub(super) async fn append(&self, line: Line) -> io::Result<()> {
        let gone = || io::Error::other("the ledger's thread has ended");
        let (done, written) = oneshot::channel();
        self.0.send((line, done)).await.map_err(|_| gone())?;
        written.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// One fsync for all lines that arrived during the last one; otherwise the demo would measure the disk.
fn write<Line: Serialize>(mut file: File, mut lines: mpsc::Receiver<Waiting<Line>>) {
    while let Some(first) = lines.blocking_recv() {
        let mut waiting = vec![first];
        while let Ok(next) = lines.try_recv() {
            waiting.push(next);
        }
        let result = append(&mut file, &waiting);
        for (_, done) in waiting {
            let result = match &result {
                Ok(()) => Ok(()),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            let _ = done.send(result);
        }
    }
}

fn append<Line: Serialize>(file: &mut File, lines: &[Waiting<Line>]) -> io::Result<()> {
    let mut text = String::new();
    for (line, _) in lines {
        text.push_str(&serde_json::to_string(line)?);
        text.push('\n');
    }
    file.write_all(text.as_bytes())?;
    file.sync_data()
}

/// All lines of a ledger. Half a line, of a process that was killed, is none.
pub(super) fn read<Line: DeserializeOwned>(path: &Path) -> io::Result<Vec<Line>> {
    let bytes = fs::read(path)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// The charges of each key.
#[derive(Default)]
pub(super) struct Counted(HashMap<String, Vec<Charge>>);

impl FromIterator<Charge> for Counted {
    fn from_iter<I: IntoIterator<Item = Charge>>(charges: I) -> Self {
        let mut counted: HashMap<String, Vec<Charge>> = HashMap::new();
        for charge in charges {
            counted.entry(charge.key.clone()).or_default().push(charge);
        }
        Self(counted)
    }
}

impl Counted {
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        Ok(read::<Charge>(path)?.into_iter().collect())
    }

    pub(super) fn of(&self, intent: IntentNo) -> &[Charge] {
        self.0.get(&intent.to_string()).map_or(&[], Vec::as_slice)
    }

    pub(super) fn charges(&self) -> u64 {
        self.0.values().map(|charges| charges.len() as u64).sum()
    }

    /// Intents that were charged more than once.
    pub(super) fn repeated(&self) -> u64 {
        self.0.values().filter(|charges| charges.len() > 1).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_line_is_no_charge_and_a_line_twice_is_two() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let line = |n: u32| {
            let charge = Charge { id: "pay-1".into(), key: IntentNo(n).to_string(), amount: 1 };
            serde_json::to_string(&charge).unwrap()
        };
        let half = &line(3)[..20];
        fs::write(&path, format!("{}\n{}\n{}\n{half}", line(1), line(1), line(2))).unwrap();
        let counted = Counted::read(&path).unwrap();
        assert_eq!((counted.charges(), counted.repeated()), (3, 1));
        assert_eq!([0, 1, 2, 3].map(|n| counted.of(IntentNo(n)).len()), [0, 2, 1, 0]);
    }
}
