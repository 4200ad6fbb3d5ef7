//! Where effects happen: outside of every store, on disk, and readable when all is over.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use testkit::ledger::{Entries, Ledger};

use super::party::Kind;

/// A directory: one ledger for what nothing protects, and one file per key for what honours keys.
#[derive(Clone, Debug)]
pub struct Downstream {
    dir: PathBuf,
    ledger: Arc<Ledger>,
}

impl Downstream {
    /// Opens it; several processes may.
    pub fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir.join("keyed"))?;
        let ledger = Arc::new(Ledger::open(dir.join("ledger"))?);
        Ok(Self { dir: dir.to_owned(), ledger })
    }

    /// Charges, and gives a receipt no other charge has.
    pub fn charge(&self, kind: Kind, key: &str) -> io::Result<String> {
        let receipt = format!("{:016x}", fastrand::u64(..));
        match kind {
            Kind::Keyed => self.charge_keyed(key, &receipt),
            Kind::Opaque | Kind::Asked => {
                self.ledger.append(&format!("{key} {receipt}"))?;
                Ok(receipt)
            }
        }
    }

    /// Only the first charge of a key happens; later ones get its receipt.
    fn charge_keyed(&self, key: &str, receipt: &str) -> io::Result<String> {
        let place = self.dir.join("keyed").join(key);
        // Written apart and linked: half a receipt is never read, and one of any number wins.
        let draft = self.dir.join(format!("draft-{receipt}"));
        fs::write(&draft, receipt)?;
        let linked = fs::hard_link(&draft, &place);
        fs::remove_file(&draft)?;
        match linked {
            Ok(()) => Ok(receipt.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => fs::read_to_string(place),
            Err(error) => Err(error),
        }
    }

    /// What a lookup finds.
    pub fn find(&self, key: &str) -> io::Result<Option<String>> {
        Ok(self.charges()?.remove(key).and_then(|mut receipts| receipts.pop()))
    }

    /// Every charge that happened: receipts by key.
    pub fn charges(&self) -> io::Result<BTreeMap<String, Vec<String>>> {
        let mut charges: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in Entries::read(self.dir.join("ledger"))?.lines() {
            if let Some((key, receipt)) = line.split_once(' ') {
                charges.entry(key.to_owned()).or_default().push(receipt.to_owned());
            }
        }
        for entry in fs::read_dir(self.dir.join("keyed"))? {
            let entry = entry?;
            let receipt = fs::read_to_string(entry.path())?;
            charges.entry(entry.file_name().to_string_lossy().into_owned()).or_default().push(receipt);
        }
        Ok(charges)
    }
}
