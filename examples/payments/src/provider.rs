//! A card provider as the service sees one, in a few lines: it honours keys, and it remembers in a file of its own.
//!
//! It stands in for a third party's server. A rollback here cannot undo a charge there, so it is never called inside
//! of a transaction; and it outlives the service, which may be killed after the charge and before the booking.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use semel::Key;

/// No card here is good for more, in cents.
const LIMIT: i64 = 1_000_000;

/// The provider, on a file with one line for each charge: key, cents, and its own id for it.
#[derive(Clone, Debug)]
pub struct Provider(Arc<Mutex<Charges>>);

#[derive(Debug)]
struct Charges {
    file: File,
    by_key: HashMap<String, String>,
}

/// The provider's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Charged {
    /// The card was charged, now or before under the same key; this is the provider's id for it.
    Paid(String),
    /// The card is not good for it.
    Declined,
}

impl Provider {
    /// The provider whose charges are in this file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
        let mut by_key = HashMap::new();
        for line in BufReader::new(&file).lines() {
            let line = line?;
            if let [key, _, charge] = line.split(' ').collect::<Vec<_>>()[..] {
                by_key.insert(key.to_owned(), charge.to_owned());
            }
        }
        Ok(Self(Arc::new(Mutex::new(Charges { file, by_key }))))
    }

    /// Charges a card, once per key.
    pub async fn charge(&self, key: Key, amount: i64) -> io::Result<Charged> {
        let charges = Arc::clone(&self.0);
        let charged = tokio::task::spawn_blocking(move || {
            charges.lock().unwrap_or_else(PoisonError::into_inner).charge(&key, amount)
        });
        charged.await.map_err(io::Error::other)?
    }
}

impl Charges {
    fn charge(&mut self, key: &Key, amount: i64) -> io::Result<Charged> {
        if let Some(charge) = self.by_key.get(key.as_str()) {
            return Ok(Charged::Paid(charge.clone()));
        }
        if amount > LIMIT {
            return Ok(Charged::Declined);
        }
        let charge = format!("ch_{}", Key::random().as_str());
        self.file.write_all(format!("{} {amount} {charge}\n", key.as_str()).as_bytes())?;
        self.file.sync_data()?;
        self.by_key.insert(key.as_str().to_owned(), charge.clone());
        Ok(Charged::Paid(charge))
    }
}
