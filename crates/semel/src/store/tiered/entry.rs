//! A cache entry: a finished record as the authority had it, or a tombstone, with a checksum against mix-ups.
//!
//! ```text
//!  kind  epoch  checksum                                 read_at  the record
//!  1     8      16: SHA-256 of lineage, id and the rest  8        …
//! ```
//!
//! The checksum is no secret: it detects wrong bytes, bytes under a wrong key and bytes of another database, but no
//! forgery. Anyone who may write to the cache may forge what is replayed.

use bytes::{BufMut, Bytes};
use sha2::{Digest, Sha256};

use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::{Epoch, Intent, IntentId, Operation, Owner};
use crate::intent::key::Key;
use crate::intent::outcome::Outcome;
use crate::intent::policy::StoreTime;
use crate::intent::scope::Scope;
use crate::intent::state::{Head, State};
use crate::store::encoding::{decision_of, decision_text, effect_code, effect_of, state_code, state_of};
use crate::store::{Lineage, Record};

const OUTCOME: u8 = 1;
const TOMBSTONE: u8 = 2;
const SUM_AT: usize = 9;
const SUM_BYTES: usize = 16;
const NEVER: u64 = u64::MAX;

/// A decoded entry.
pub(super) enum Entry {
    /// A finished record, read from the authority when its clock was at least this.
    Finished(Box<Record>, StoreTime),
    /// The outcome was withdrawn; nothing older counts.
    Withdrawn,
}

/// The key of an entry. The lineage is part of it: an entry of one database says nothing about another.
pub(super) fn name(lineage: Lineage, id: &IntentId) -> [u8; 48] {
    let mut name = [0; 48];
    name[..16].copy_from_slice(lineage.as_bytes());
    name[16..].copy_from_slice(id.as_bytes());
    name
}

pub(super) fn tombstone(name: &[u8], epoch: Epoch) -> Vec<u8> {
    with_checksum(name, header(TOMBSTONE, epoch))
}

/// A record that is replayed: completed, or failed for good.
pub(super) fn finished(name: &[u8], record: &Record, read_at: StoreTime) -> Vec<u8> {
    let head = &record.head;
    let mut out = header(OUTCOME, head.epoch);
    out.put_u64(read_at.0);
    out.put_u8(state_code(head.state) as u8);
    out.put_u8(effect_code(head.effect) as u8);
    out.put_u32(record.attempts);
    for time in [record.created_at, record.changed_at, head.lease_until] {
        out.put_u64(time.0);
    }
    out.put_u64(head.expires_at.map_or(NEVER, |at| at.0));
    out.put_slice(head.owner.as_bytes());
    out.put_slice(head.fingerprint.digest());
    out.put_u64(head.fingerprint.recipe().as_u64());
    let decision = record.decision.as_ref().map(decision_text).unwrap_or_default();
    let outcome = record.outcome.as_ref().map(Outcome::encode).unwrap_or_default();
    let intent = &record.intent;
    for text in [intent.scope().as_str(), intent.operation().as_str(), intent.key().as_str(), &decision] {
        out.put_u32(text.len() as u32);
        out.put_slice(text.as_bytes());
    }
    out.put_slice(&outcome);
    with_checksum(name, out)
}

fn header(kind: u8, epoch: Epoch) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    out.put_u8(kind);
    out.put_u64(epoch.0);
    out.put_bytes(0, SUM_BYTES);
    out
}

fn with_checksum(name: &[u8], mut out: Vec<u8>) -> Vec<u8> {
    let sum = sum(name, &out);
    out[SUM_AT..SUM_AT + SUM_BYTES].copy_from_slice(&sum);
    out
}

fn sum(name: &[u8], entry: &[u8]) -> [u8; SUM_BYTES] {
    let mut hash = Sha256::new();
    hash.update(name);
    hash.update(&entry[..SUM_AT]);
    hash.update(&entry[SUM_AT + SUM_BYTES..]);
    let mut sum = [0; SUM_BYTES];
    sum.copy_from_slice(&hash.finalize()[..SUM_BYTES]);
    sum
}

/// Decodes an entry; `None` if it is not what was stored under that name.
pub(super) fn read(name: &[u8], entry: Vec<u8>) -> Option<Entry> {
    if entry.len() < SUM_AT + SUM_BYTES || entry[SUM_AT..SUM_AT + SUM_BYTES] != sum(name, &entry) {
        return None;
    }
    let mut rest = Reader(Bytes::from(entry));
    let (kind, epoch) = (rest.take(1)?[0], Epoch(rest.number()?));
    rest.take(SUM_BYTES)?;
    match kind {
        TOMBSTONE => Some(Entry::Withdrawn),
        OUTCOME => {
            let read_at = rest.time()?;
            let record = rest.record(epoch)?;
            (record.intent.id().as_bytes() == &name[16..]).then(|| Entry::Finished(Box::new(record), read_at))
        }
        _ => None,
    }
}

struct Reader(Bytes);

impl Reader {
    fn take(&mut self, len: usize) -> Option<Bytes> {
        (self.0.len() >= len).then(|| self.0.split_to(len))
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take(8)?[..].try_into().ok()?))
    }

    fn short(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?[..].try_into().ok()?))
    }

    fn time(&mut self) -> Option<StoreTime> {
        self.number().map(StoreTime)
    }

    fn text(&mut self) -> Option<String> {
        let len = self.short()? as usize;
        String::from_utf8(self.take(len)?.to_vec()).ok()
    }

    fn record(mut self, epoch: Epoch) -> Option<Record> {
        let state = state_of(i64::from(self.take(1)?[0])).ok()?;
        let effect = effect_of(i64::from(self.take(1)?[0])).ok()?;
        let attempts = self.short()?;
        let (created_at, changed_at, lease_until) = (self.time()?, self.time()?, self.time()?);
        let expires_at = self.time().map(|at| Some(at).filter(|at| at.0 != NEVER))?;
        let owner = Owner::from_bytes(self.take(16)?[..].try_into().ok()?);
        let digest = self.take(32)?[..].try_into().ok()?;
        let fingerprint = Fingerprint::from_parts(digest, self.number()?);
        let (scope, operation, key) = (self.text()?, self.text()?, self.text()?);
        let intent = Intent::new(
            Scope::from_text(&scope).ok()?,
            Operation::new(&operation).ok()?,
            Key::new(key.as_str()).ok()?,
        );
        let decision = match self.text()? {
            text if text.is_empty() => None,
            text => Some(decision_of(&text).ok()?),
        };
        let outcome = match self.0 {
            rest if rest.is_empty() => None,
            rest => Some(Outcome::decode(rest).ok()?),
        };
        // What is replayed has nothing left that a key would protect.
        let safe_until = None;
        let head = Head { state, effect, fingerprint, owner, epoch, lease_until, expires_at, safe_until };
        Some(Record { intent, head, attempts, created_at, changed_at, outcome, decision })
    }
}

/// Whether a record may be cached: only what is replayed.
pub(super) fn is_kept(record: &Record) -> bool {
    matches!(record.head.state, State::Completed | State::FailedFinal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intent::policy::Effect;
    use crate::store::Decision;
    use proptest::prelude::*;

    fn record() -> Record {
        let intent = Intent::new(
            Scope::tenant("acme").unwrap(),
            Operation::new("pay").unwrap(),
            Key::new("order-1").unwrap(),
        );
        let head = Head {
            state: State::Completed,
            effect: Effect::Keyed,
            fingerprint: Fingerprint::from_parts([3; 32], 9),
            owner: Owner::from_bytes([4; 16]),
            epoch: Epoch(1 << 60),
            lease_until: StoreTime(5),
            expires_at: Some(StoreTime(6)),
            safe_until: None,
        };
        let (outcome, at) = (Some(Outcome::new(201, "yes").header("a", "b")), StoreTime(7));
        let decision = Some(Decision { ruling: "applied".into(), by: "ana".into(), why: "ü".into(), at });
        Record {
            intent,
            head,
            attempts: 2,
            created_at: StoreTime(1),
            changed_at: StoreTime(2),
            outcome,
            decision,
        }
    }

    #[test]
    fn a_record_reads_back_under_its_own_name_only() {
        let (record, lineage) = (record(), Lineage::random());
        let name_of = |lineage| name(lineage, &record.intent.id());
        let entry = finished(&name_of(lineage), &record, StoreTime(8));
        let Some(Entry::Finished(read, read_at)) = read(&name_of(lineage), entry.clone()) else { panic!() };
        assert_eq!(format!("{read:?} {read_at:?}"), format!("{record:?} {:?}", StoreTime(8)));
        assert!(super::read(&name_of(Lineage::random()), entry.clone()).is_none(), "another database's");
        for at in 0..entry.len() {
            let mut wrong = entry.clone();
            wrong[at] ^= 1;
            assert!(super::read(&name_of(lineage), wrong).is_none(), "byte {at}");
            assert!(super::read(&name_of(lineage), entry[..at].to_vec()).is_none(), "cut at {at}");
        }
    }

    #[test]
    fn a_tombstone_reads_back() {
        let name = name(Lineage::random(), &record().intent.id());
        assert!(matches!(read(&name, tombstone(&name, Epoch(3))), Some(Entry::Withdrawn)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read(&[0; 48], bytes).is_none());
        }
    }

    /// An older process may read entries that a newer one wrote. An entry that it cannot decode counts as a cache miss,
    /// and it asks the SQL store.
    #[test]
    fn contract_bytes_of_cache_entries() {
        let name = name(Lineage::from_bytes([1; 16]), &record().intent.id());
        let hex = crate::intent::key::hex;
        let (finished, tombstone) = (finished(&name, &record(), StoreTime(8)), tombstone(&name, Epoch(3)));
        let listing =
            format!("name: {}\nfinished: {}\ntombstone: {}\n", hex(&name), hex(&finished), hex(&tombstone));
        crate::contracts::pinned("bytes.cache", &listing);
    }
}
