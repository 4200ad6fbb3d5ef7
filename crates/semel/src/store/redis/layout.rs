//! Keys and encoding of records, as `lua/begin.lua` describes them.

use bytes::Bytes;

use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::{Epoch, Intent, IntentId, Operation, Owner};
use crate::intent::key::Key;
use crate::intent::outcome::Outcome;
use crate::intent::policy::StoreTime;
use crate::intent::scope::Scope;
use crate::intent::state::{Head, Ruling, State};
use crate::store::encoding::{Codes, Decoded, state_code, state_of};
use crate::store::{Decide, Decision, ErrorKind, Fate, Record, StoreError};

/// Intents are spread over this many hash tags, and so over a cluster's slots, independent of their tenant.
pub(super) const BUCKETS: u16 = 1_024;
/// Bytes of an intent's digest in its key. The full identity is in the record, and compared.
pub(super) const ID_BYTES: usize = 16;
/// Times have six bytes: until the year 10889.
pub(super) const TIME_MAX: u64 = (1 << 48) - 1;
const HEAD_BYTES: usize = 84;
const HAS_SAFE_UNTIL: u8 = 32;
const DECIDED: u8 = 64;
/// What comes before the time of a key: the beginning of an outcome (format 1, with a body, code 0, no headers). A version
/// that does not know the time reads it as the body of an outcome, and never gives it out, because the record is open.
const SAFE_PREFIX: [u8; 6] = [1, 1, 0, 0, 0, 0];

/// The keys of one intent, all in one slot.
pub(super) struct Keys {
    pub(super) marker: Vec<u8>,
    pub(super) record: Vec<u8>,
    pub(super) open: Vec<u8>,
    pub(super) member: [u8; ID_BYTES],
    pub(super) bucket: u16,
}

pub(super) fn bucket_of(id: &IntentId) -> u16 {
    let bytes = id.as_bytes();
    u16::from_be_bytes([bytes[0], bytes[1]]) >> 6
}

/// An epoch as the scripts have it, with the bucket appended: two buckets of a cluster may assign the same microsecond,
/// and no epoch may occur twice in a store. Below 2^63 until the year 2255.
pub(super) fn epoch(us: u64, bucket: u16) -> Epoch {
    Epoch(us << 10 | u64::from(bucket))
}

/// The inverse; 0, which no record has, if the epoch is from another bucket.
pub(super) fn epoch_us(epoch: Epoch, bucket: u16) -> u64 {
    if epoch.0 & 0x3ff == u64::from(bucket) { epoch.0 >> 10 } else { 0 }
}

pub(super) fn marker_key(prefix: &str, bucket: u16) -> Vec<u8> {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
    let mut key = Vec::with_capacity(prefix.len() + 4 + ID_BYTES);
    key.extend_from_slice(prefix.as_bytes());
    key.push(b'{');
    key.push(DIGITS[usize::from(bucket >> 5) % 32]);
    key.push(DIGITS[usize::from(bucket % 32)]);
    key.push(b'}');
    key
}

pub(super) fn open_key(prefix: &str, bucket: u16) -> Vec<u8> {
    let mut key = marker_key(prefix, bucket);
    key.push(b'o');
    key
}

pub(super) fn record_key(prefix: &str, bucket: u16, member: &[u8]) -> Vec<u8> {
    let mut key = marker_key(prefix, bucket);
    key.extend_from_slice(member);
    key
}

impl Keys {
    pub(super) fn of(prefix: &str, id: &IntentId) -> Self {
        let bucket = bucket_of(id);
        let mut member = [0; ID_BYTES];
        // The first byte is already in the tag.
        member.copy_from_slice(&id.as_bytes()[1..=ID_BYTES]);
        Self {
            marker: marker_key(prefix, bucket),
            record: record_key(prefix, bucket, &member),
            open: open_key(prefix, bucket),
            member,
            bucket,
        }
    }

    pub(super) fn all(&self) -> [&[u8]; 3] {
        [&self.marker, &self.record, &self.open]
    }
}

/// Lengths of operation, key and scope, then the three. A key that is a UUID in lower case with hyphens takes 16 bytes;
/// its length is written as 0, which no key has.
pub(super) fn identity(intent: &Intent) -> Vec<u8> {
    let (scope, operation, key) =
        (intent.scope().as_str(), intent.operation().as_str(), intent.key().as_str());
    let uuid = uuid::Uuid::try_parse(key)
        .ok()
        .filter(|uuid| uuid.hyphenated().encode_lower(&mut [0; uuid::fmt::Hyphenated::LENGTH]) == key);
    let key_bytes = uuid.as_ref().map_or(key.as_bytes(), |uuid| uuid.as_bytes().as_slice());
    let mut out = Vec::with_capacity(4 + operation.len() + key_bytes.len() + scope.len());
    // Operation and key are bounded by their types to 200 and 255 bytes, a scope to far less than 65,536.
    out.push(operation.len() as u8);
    out.push(if uuid.is_some() { 0 } else { key.len() as u8 });
    out.extend_from_slice(&(scope.len() as u16).to_be_bytes());
    // The script adds up the lengths: the UUID's sixteen are counted with the scope's.
    if uuid.is_some() {
        let len = (scope.len() + 16) as u16;
        out[2..4].copy_from_slice(&len.to_be_bytes());
    }
    out.extend_from_slice(operation.as_bytes());
    out.extend_from_slice(key_bytes);
    out.extend_from_slice(scope.as_bytes());
    out
}

pub(super) fn fingerprint(print: &Fingerprint) -> [u8; 40] {
    let mut out = [0; 40];
    out[..32].copy_from_slice(print.digest());
    out[32..].copy_from_slice(&print.recipe().as_u64().to_be_bytes());
    out
}

/// A decision, encoded, without its time, which the script adds.
pub(super) fn note(decide: &Decide) -> Vec<u8> {
    let Decision { by, why, .. } = Decision::new(decide, StoreTime(0));
    let mut out = vec![
        match decide.ruling {
            Ruling::Applied(_) => 0,
            Ruling::NotApplied => 1,
            Ruling::Release => 2,
        },
        by.len() as u8,
    ];
    out.extend_from_slice(by.as_bytes());
    out.extend_from_slice(why.as_bytes());
    out
}

/// The code of a ruling in `decide.lua`.
pub(super) fn ruling_code(ruling: Ruling) -> i64 {
    match ruling {
        Ruling::Applied(verdict) => state_code(State::from(verdict)),
        Ruling::NotApplied => 8,
        Ruling::Release => 9,
    }
}

/// Decodes a record. Never panics on malformed input.
pub(super) fn record(raw: &[u8]) -> Result<Record, StoreError> {
    Reader(raw).record(true).map_err(unreadable)
}

/// Decodes a record without its outcome, from its first bytes. `None` if there are too few.
pub(super) fn beginning(raw: &[u8]) -> Option<Result<Record, StoreError>> {
    match Reader(raw).record(false) {
        Err(Unread::Short) => None,
        read => Some(read.map_err(unreadable)),
    }
}

enum Unread {
    Short,
    Wrong(String),
}

fn unreadable(why: Unread) -> StoreError {
    let why = match why {
        Unread::Short => "it is truncated".to_owned(),
        Unread::Wrong(why) => why,
    };
    let message = format!(
        "a record in Redis cannot be read ({why}); check whether another program writes to these keys"
    );
    StoreError::new(ErrorKind::Corrupt, Fate::NotApplied, message)
}

fn wrong(why: impl std::fmt::Display) -> Unread {
    Unread::Wrong(why.to_string())
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Unread> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Unread::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self, len: usize) -> Result<u64, Unread> {
        Ok(self.take(len)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn time(&mut self) -> Result<StoreTime, Unread> {
        self.number(6).map(StoreTime)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Unread> {
        self.take(N)?.try_into().map_err(wrong)
    }

    fn text(&mut self, len: usize) -> Result<&'a str, Unread> {
        std::str::from_utf8(self.take(len)?).map_err(wrong)
    }

    fn record(mut self, with_outcome: bool) -> Result<Record, Unread> {
        debug_assert_eq!(HEAD_BYTES, 1 + 7 + 3 * 6 + 2 + 16 + 40);
        let tag = self.number(1)? as u8;
        let (state, effect) = (i64::from(tag & 7), i64::from(tag >> 3 & 3));
        let is_open = !state_of(state).map_err(wrong)?.is_finished();
        let epoch_us = self.number(7)?;
        let (created_at, changed_at, till) = (self.time()?, self.time()?, self.time()?);
        let attempts = self.number(2)? as u32;
        let owner = Owner::from_bytes(self.bytes()?);
        let digest = self.bytes()?;
        let fingerprint = Fingerprint::from_parts(digest, self.number(8)?);
        let intent = self.intent()?;
        let epoch = epoch(epoch_us, bucket_of(&intent.id()));
        let decision = if tag & DECIDED == 0 { None } else { Some(self.decision()?) };
        let safe_until = if tag & HAS_SAFE_UNTIL == 0 { None } else { Some(self.safe_until()?) };
        let outcome = match self.0 {
            rest if with_outcome && !rest.is_empty() => {
                Some(Outcome::decode(Bytes::copy_from_slice(rest)).map_err(wrong)?)
            }
            _ => None,
        };
        // One field for both: a finished record has no lease, an open one no expiry.
        let (lease_until, expires_at) = match is_open {
            true => (till, safe_until),
            false => (changed_at, Some(till.0.cast_signed()).filter(|till| *till > 0)),
        };
        let Decoded { state, effect, expires_at, safe_until } =
            Codes { state, effect, expires_at }.read().map_err(wrong)?;
        let head = Head { state, effect, fingerprint, owner, epoch, lease_until, expires_at, safe_until };
        Ok(Record { intent, head, attempts, created_at, changed_at, outcome, decision })
    }

    fn safe_until(&mut self) -> Result<i64, Unread> {
        match self.bytes()? {
            SAFE_PREFIX => Ok(self.number(6)?.cast_signed()),
            _ => Err(wrong("the time of its key has no prefix")),
        }
    }

    fn intent(&mut self) -> Result<Intent, Unread> {
        let (operation, key, scope) = (self.number(1)? as usize, self.number(1)? as usize, self.number(2)?);
        let operation = Operation::new(self.text(operation)?).map_err(wrong)?;
        let mut scope = scope as usize;
        let key = match key {
            0 => {
                scope = scope.checked_sub(16).ok_or_else(|| wrong("its scope is truncated"))?;
                Key::new(uuid::Uuid::from_bytes(self.bytes()?).to_string()).map_err(wrong)?
            }
            len => Key::new(self.text(len)?).map_err(wrong)?,
        };
        let scope = Scope::from_text(self.text(scope)?).map_err(wrong)?;
        Ok(Intent::new(scope, operation, key))
    }

    fn decision(&mut self) -> Result<Decision, Unread> {
        let len = self.number(2)? as usize;
        let mut note = Reader(self.take(len)?);
        let at = note.time()?;
        let ruling = match note.number(1)? {
            0 => "applied",
            1 => "not_applied",
            2 => "released",
            other => return Err(wrong(format_args!("{other} is not the code of a ruling"))),
        };
        let by = note.number(1)? as usize;
        let by = note.text(by)?.to_owned();
        let why = std::str::from_utf8(note.0).map_err(wrong)?.to_owned();
        Ok(Decision { ruling: ruling.to_owned(), by, why, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(raw in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = (record(&raw).is_ok(), beginning(&raw).is_some());
        }

        #[test]
        fn an_identity_reads_back(key in "[!-~]{1,60}", tenant in "[a-zÜ/%]{1,20}", uuid: [u8; 16], is_uuid: bool) {
            let key = if is_uuid { uuid::Uuid::from_bytes(uuid).to_string() } else { key };
            let intent = Intent::new(
                Scope::tenant(&tenant).unwrap(),
                Operation::new("POST /pay").unwrap(),
                Key::new(key.as_str()).unwrap(),
            );
            let bytes = identity(&intent);
            let Ok(read) = Reader(&bytes).intent() else { panic!("{bytes:?}") };
            prop_assert_eq!(read.id(), intent.id());
            prop_assert_eq!(read.key().as_str(), intent.key().as_str());
        }
    }

    #[test]
    fn a_uuid_in_another_spelling_stays_as_it_is() {
        let of = |key: &str| {
            identity(&Intent::new(
                Scope::single_tenant(),
                Operation::new("op").unwrap(),
                Key::new(key).unwrap(),
            ))
        };
        assert_eq!(of("017f22e2-79b0-7cc3-98c4-dc0c0c07398f").len(), 4 + 2 + 16);
        assert_eq!(of("017F22E2-79B0-7CC3-98C4-DC0C0C07398F").len(), 4 + 2 + 36);
        assert_eq!(of("017f22e279b07cc398c4dc0c0c07398f").len(), 4 + 2 + 32);
    }

    #[test]
    fn buckets_have_tags_of_their_own() {
        let tags: std::collections::HashSet<_> = (0..BUCKETS).map(|bucket| marker_key("s", bucket)).collect();
        assert_eq!(tags.len(), usize::from(BUCKETS));
        assert_eq!(marker_key("s", 0), b"s{00}");
        assert_eq!(marker_key("s", 1_023), b"s{vv}");
    }

    /// Records as `lua/begin.lua` describes them.
    const FINISHED: &str = "4a0000000001e24000000000000100000000000200000000000600020404040404040404040404040404040403030303030303030303030303030303030303030303030303030303030303030000000000000009030700047061796f726465722d3161636d65000f0000000000090003616e617365656e010100c9000100000001610000000162796573";
    const OPEN: &str = "000000000001e24000000000000100000000000200000000000600010404040404040404040404040404040403030303030303030303030303030303030303030303030303030303030303030000000000000009030700047061796f726465722d3161636d65";
    const WITH_SAFE_UNTIL: &str = "200000000001e24000000000000100000000000200000000000600010404040404040404040404040404040403030303030303030303030303030303030303030303030303030303030303030000000000000009030700047061796f726465722d3161636d65010100000000000000000007";

    const DECIDED_SAFE: &str = "610000000001e24000000000000100000000000200000000000600010404040404040404040404040404040403030303030303030303030303030303030303030303030303030303030303030000000000000009030700047061796f726465722d3161636d65000f0000000000090003616e617365656e010100000000000000000007010100c9000100000001610000000162796573";

    fn bytes_of(digits: &str) -> Vec<u8> {
        let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    /// The steps of a version before `safe_until`: the tag has no bit for it, and the outcome follows the decision.
    fn read_by_an_older_version(raw: &[u8]) -> (i64, i64, Option<Decision>, Option<Outcome>) {
        let tag = raw[0];
        let mut rest = Reader(&raw[HEAD_BYTES..]);
        let read = (|| {
            rest.intent()?;
            let decision = if tag & DECIDED == 0 { None } else { Some(rest.decision()?) };
            let outcome = match rest.0 {
                [] => None,
                rest => Some(Outcome::decode(Bytes::copy_from_slice(rest)).map_err(wrong)?),
            };
            Ok::<_, Unread>((i64::from(tag & 7), i64::from(tag >> 3 & 3), decision, outcome))
        })();
        read.map_err(unreadable).unwrap()
    }

    /// Also in lists of everything: one record that an older version cannot read would fail the whole page.
    #[test]
    fn an_older_version_reads_a_record_with_safe_until_and_holds_it() {
        for (stored, state, decided) in [(WITH_SAFE_UNTIL, 0, false), (DECIDED_SAFE, 1, true)] {
            let raw = bytes_of(stored);
            let (code, effect, decision, outcome) = read_by_an_older_version(&raw);
            assert_eq!((code, effect, decision.is_some()), (state, 0, decided), "an opaque one that is open");
            assert_eq!(outcome.map(|outcome| (outcome.code, outcome.headers.is_empty())), Some((0, true)));
            let read = record(&raw).unwrap();
            assert_eq!((read.head.safe_until, read.decision), (Some(StoreTime(7)), decision));
            assert_eq!(read.outcome.is_some(), decided);
            assert!(beginning(&raw).is_some_and(|read| read.unwrap().head.safe_until == Some(StoreTime(7))));
            let mut wrong = raw.clone();
            let prefix = wrong.windows(12).position(|at| at == [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]).unwrap();
            wrong[prefix] = 9;
            assert!(record(&wrong).is_err());
        }
    }

    #[test]
    fn contract_bytes_of_records_and_their_keys() {
        use crate::intent::key::hex;
        let of = |key: &str| {
            Intent::new(
                Scope::tenant("acme").unwrap(),
                Operation::new("pay").unwrap(),
                Key::new(key).unwrap(),
            )
        };
        let mut listing = String::new();
        let mut line = |what: &str, text: String| listing += &format!("{what}: {text}\n");
        let keys = Keys::of("semel:", &of("order-1").id());
        for (what, key) in ["marker", "record", "open"].iter().zip(keys.all()) {
            line(&format!("key of the {what}"), key.escape_ascii().to_string());
        }
        line("identity", hex(&identity(&of("order-1"))));
        line("identity of a UUID", hex(&identity(&of("017f22e2-79b0-7cc3-98c4-dc0c0c07398f"))));
        line("fingerprint", hex(&fingerprint(&Fingerprint::from_parts([3; 32], 9))));
        let examples = [
            ("finished", FINISHED),
            ("open", OPEN),
            ("with safe_until", WITH_SAFE_UNTIL),
            ("decided, with safe_until", DECIDED_SAFE),
        ];
        for (what, stored) in examples {
            let raw = bytes_of(stored);
            line(what, stored.to_owned());
            let Record { intent, head, attempts, created_at, changed_at, outcome, decision } =
                record(&raw).unwrap();
            assert_eq!(intent.id(), of("order-1").id());
            let (state, effect, fingerprint) =
                (head.state.as_str(), head.effect.as_str(), fingerprint(&head.fingerprint));
            let owner = hex(head.owner.as_bytes());
            line(what, format!("{state} {effect} {attempts} {owner} {}", hex(&fingerprint)));
            let times = (created_at.0, changed_at.0, head.lease_until.0, head.expires_at.map(|at| at.0));
            line(what, format!("epoch {}, times {times:?}", head.epoch.0));
            if let Some(until) = head.safe_until {
                line(what, format!("safe until {}", until.0));
            }
            line(what, outcome.map(|outcome| hex(&outcome.encode())).unwrap_or_default());
            line(what, decision.as_ref().map(crate::store::encoding::decision_text).unwrap_or_default());
        }
        crate::contracts::pinned("bytes.redis", &listing);
    }
}
