//! Protected stores: every law holds, nothing readable reaches the disk, and what cannot be opened is held.

use semel::blocking;
use semel::conformance::Harness;
use semel::store::memory::MemoryStore;
use semel::store::protect::{Keys, Protected, Protection, SealKey};
use semel::store::sqlite::SqliteStore;
use semel::store::{Claimed, Decide, Decided, ErrorKind, Fate, Filter, Finished, Store};
use semel::{Body, Guard, GuardError, OnceError, Outcome, Retention, StoreTime, Verdict};
use tempfile::TempDir;

use crate::conformance_memory::ManualClock;
use crate::guard_world::{acme, key as guard_key};
use crate::sqlite_support::{claim, completed, error_of, intent, place, plain, run};

fn key(id: &str, byte: u8) -> SealKey {
    SealKey::new(id, [byte; 32]).unwrap()
}

fn sealed_by(id: &str, byte: u8) -> Protection {
    Protection::none().seal(Keys::new(key(id, byte)))
}

fn everything() -> Protection {
    Protection::none().compress_above(200).seal(Keys::new(key("2026-11", 7)))
}

struct Memory(ManualClock, Protection);

impl Harness for Memory {
    type Store = Protected<MemoryStore>;

    async fn store(&self) -> Self::Store {
        Protected::new(self.0.store(), self.1.clone())
    }

    async fn pass(&self, _store: &Self::Store, until: StoreTime) {
        self.0.reach(until);
    }
}

struct Sqlite(TempDir, Protection);

impl Harness for Sqlite {
    type Store = Protected<SqliteStore>;

    async fn store(&self) -> Self::Store {
        let store = SqliteStore::open(self.0.path().join("semel.db")).await.expect("the file opens");
        Protected::new(store, self.1.clone())
    }

    async fn reopen(&self, store: Self::Store) -> Option<Self::Store> {
        drop(store);
        Some(self.store().await)
    }
}

mod memory {
    semel::store_conformance!(super::Memory(super::ManualClock::new(), super::everything()));
}

mod sqlite {
    semel::store_conformance!(super::Sqlite(super::TempDir::new().unwrap(), super::everything()));
}

mod compressed_only {
    semel::store_conformance!(super::Memory(
        super::ManualClock::new(),
        super::Protection::none().compress_above(0)
    ));
}

fn secret() -> Outcome {
    Outcome::new(201, "body: Jane Doe ".repeat(40)).header("x-secret", "header: Jane Doe")
}

fn finish() -> semel::store::Finish {
    semel::store::Finish { outcome: Some(secret()), ..completed("") }
}

async fn replayed(store: &impl Store, name: &str) -> Result<Outcome, semel::store::StoreError> {
    match store.claim(claim(name)).await? {
        Claimed::Replay(existing) => Ok(existing.record.outcome.clone().unwrap()),
        other => panic!("{other:?}"),
    }
}

/// Whether any file of the store contains the text.
fn on_disk(place: &crate::sqlite_support::Place, text: &str) -> bool {
    std::fs::read_dir(place.dir.path()).unwrap().any(|entry| {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

#[tokio::test]
async fn nothing_readable_reaches_the_disk() {
    for (protection, readable) in [(Protection::none(), true), (everything(), false)] {
        let place = place();
        let store = Protected::new(SqliteStore::open(&place.path).await.unwrap(), protection);
        let ticket = run(&store, claim("finished")).await;
        store.finish(ticket, finish()).await.unwrap();
        // A person's decision is an outcome like any other.
        let ticket = run(&store, claim("decided")).await;
        let uncertain = semel::store::Finish { verdict: Verdict::Uncertain, ..finish() };
        store.finish(ticket, uncertain).await.unwrap();
        let decide = Decide {
            seen: ticket.epoch,
            ruling: semel::intent::state::Ruling::Applied(Verdict::Completed),
            outcome: Some(secret()),
            retention: Retention::DAY,
            by: "ana".into(),
            why: "looked".into(),
        };
        assert!(matches!(store.decide(ticket.id, decide).await.unwrap(), Decided::Recorded));
        for name in ["finished", "decided"] {
            assert_eq!(replayed(&store, name).await.unwrap(), secret(), "{name}");
        }
        let listed = store.list(Filter::default()).await.unwrap().records;
        assert!(listed.iter().all(|record| record.outcome == Some(secret())));
        assert_eq!(on_disk(&place, "Jane Doe"), readable);
        assert!(on_disk(&place, "finished"), "the key is what it is found by");
        store.inner().close().await;
        assert_eq!(on_disk(&place, "Jane Doe"), readable);
    }
}

#[tokio::test]
async fn keys_are_rotated_and_a_missing_one_is_an_error_and_never_an_absence() {
    let inner = MemoryStore::new();
    let old = Protected::new(inner.clone(), sealed_by("old", 1));
    let ticket = run(&old, claim("k")).await;
    old.finish(ticket, finish()).await.unwrap();

    let both = Keys::new(key("new", 2)).also_reading(key("old", 1)).unwrap();
    let rotated = Protected::new(inner.clone(), Protection::none().seal(both));
    assert_eq!(replayed(&rotated, "k").await.unwrap(), secret());
    let ticket = run(&rotated, claim("k-2")).await;
    rotated.finish(ticket, finish()).await.unwrap();

    // The key that wrote is named; the others cannot help.
    for (protection, kind, says) in [
        (sealed_by("new", 2), ErrorKind::Misconfigured, "\"old\", which is not configured"),
        (sealed_by("old", 9), ErrorKind::Corrupt, "its seal is broken"),
        (Protection::none(), ErrorKind::Misconfigured, "no keys are configured"),
    ] {
        let wrong = Protected::new(inner.clone(), protection);
        for error in [error_of(replayed(&wrong, "k").await), error_of(wrong.get(ticket_id()).await)] {
            assert_eq!((error.kind(), error.fate()), (kind, Fate::NotApplied), "{error}");
            assert!(error.to_string().contains(says) && !error.may_retry(), "{error}");
        }
        // A reader without the key sees that there is something.
        let listed = wrong.list(Filter::default()).await.unwrap().records;
        let shown = listed.iter().find(|record| record.intent.key().as_str() == "k").unwrap();
        assert!(matches!(shown.outcome.as_ref().unwrap().body, Body::Sealed(_)));
        assert_eq!(shown.outcome.as_ref().unwrap().code, 201);
    }
    assert_eq!(replayed(&Protected::new(inner, sealed_by("new", 2)), "k-2").await.unwrap(), secret());
}

fn ticket_id() -> semel::IntentId {
    intent("k").id()
}

#[tokio::test]
async fn a_guard_that_cannot_open_an_outcome_runs_nothing_whatever_its_policy() {
    let inner = MemoryStore::new();
    let pay = |store| Guard::new(store).operation("pay").unwrap().store_down(semel::StoreDown::Open);
    let right = pay(Protected::new(inner.clone(), sealed_by("a", 1)));
    right.once(&acme(), &guard_key("k"), &(), |_| async { Ok(1) }).await.unwrap();
    for protection in [sealed_by("a", 2), sealed_by("b", 1), Protection::none()] {
        let wrong = pay(Protected::new(inner.clone(), protection));
        let refused =
            wrong.once::<i32, _, _, _>(&acme(), &guard_key("k"), &(), |_| async { panic!("ran") }).await;
        assert!(matches!(refused, Err(OnceError::Guard(GuardError::StoreUnavailable(_)))), "{refused:?}");
    }
    // And one that does not know of protection at all.
    let bare = Guard::new(inner).operation("pay").unwrap();
    let refused = bare.once::<i32, _, _, _>(&acme(), &guard_key("k"), &(), |_| async { panic!("ran") }).await;
    assert!(matches!(refused, Err(OnceError::Guard(GuardError::StoreUnavailable(_)))), "{refused:?}");
}

#[tokio::test]
async fn outcomes_that_change_places_are_refused() {
    let place = place();
    let store = Protected::new(SqliteStore::open(&place.path).await.unwrap(), everything());
    for name in ["mine", "yours"] {
        let ticket = run(&store, claim(name)).await;
        let outcome = Some(Outcome::new(201, format!("for {name}")));
        let finish = semel::store::Finish { outcome, ..completed("") };
        assert_eq!(store.finish(ticket, finish).await.unwrap(), Finished::Recorded);
    }
    let raw = plain(&place.path);
    raw.execute_batch(
        "CREATE TEMP TABLE t AS SELECT key, outcome FROM intent;
         UPDATE intent SET outcome = (SELECT outcome FROM t WHERE t.key <> intent.key);",
    )
    .unwrap();
    for name in ["mine", "yours"] {
        let error = error_of(replayed(&store, name).await);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("belongs to another intent"), "{error}");
    }
    raw.execute_batch(
        "UPDATE intent SET outcome = (SELECT outcome FROM t WHERE t.key = intent.key); DROP TABLE t;",
    )
    .unwrap();
    assert_eq!(replayed(&store, "mine").await.unwrap().body_bytes().unwrap(), "for mine");
}

#[tokio::test]
async fn whatever_is_changed_in_a_sealed_outcome_is_noticed() {
    let id = intent("k").id();
    for protection in [sealed_by("a", 1), everything()] {
        let stored = protection.protect(&id, secret()).unwrap();
        let Body::Sealed(envelope) = &stored.body else { panic!("{stored:?}") };
        for at in 0..envelope.len() {
            let mut changed = envelope.to_vec();
            changed[at] ^= 1;
            let changed = Outcome { body: Body::Sealed(changed.into()), ..stored.clone() };
            assert!(protection.reveal(&id, changed).is_err(), "byte {at}");
            let cut = Outcome { body: Body::Sealed(envelope.slice(..at)), ..stored.clone() };
            assert!(protection.reveal(&id, cut).is_err(), "cut at {at}");
        }
        let other_status = Outcome { code: 200, ..stored.clone() };
        assert!(protection.reveal(&id, other_status).is_err());
        assert!(protection.reveal(&intent("other").id(), stored.clone()).is_err());
        assert_eq!(protection.reveal(&id, stored).unwrap(), secret());
    }
}

#[tokio::test]
async fn what_was_stored_before_is_read_unless_that_is_refused() {
    let id = intent("k").id();
    assert_eq!(everything().reveal(&id, secret()).unwrap(), secret());
    let error = error_of(everything().refuse_plain().reveal(&id, secret()));
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let compressed = Protection::none().compress_above(0).protect(&id, secret()).unwrap();
    assert!(matches!(compressed.body, Body::Sealed(_)));
    assert_eq!(everything().reveal(&id, compressed.clone()).unwrap(), secret());
    assert!(everything().refuse_plain().reveal(&id, compressed).is_err());
}

#[tokio::test]
async fn small_and_incompressible_outcomes_are_stored_as_ever() {
    let id = intent("k").id();
    let compressing = Protection::none().compress_above(100);
    let small = Outcome::new(200, "x".repeat(50));
    assert_eq!(compressing.protect(&id, small.clone()).unwrap(), small);
    let mut noise = vec![0; 500];
    let mut state = 1u64;
    for byte in &mut noise {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (state >> 56) as u8;
    }
    let noise = Outcome::new(200, noise);
    assert_eq!(compressing.protect(&id, noise.clone()).unwrap(), noise);
    // The same outcome twice is two different texts.
    let (one, two) =
        (everything().protect(&id, secret()).unwrap(), everything().protect(&id, secret()).unwrap());
    assert_ne!(one, two);
}

#[test]
fn once_in_a_transaction_is_protected_too() {
    use semel::intent::fingerprint::Recipe;
    use semel::tx::{Once, TxError};
    let place = place();
    let mut db = plain(&place.path);
    semel::tx::sqlite::migrate(&db).unwrap();
    let asked = Recipe::default().bytes(b"");
    let mut pay = |protection: Protection, may_run: bool| {
        let tx = db.transaction().unwrap();
        let once = Once::new(&intent("k"), asked).protect(protection);
        let reply = blocking::run_tx(once, &tx, |_| {
            assert!(may_run, "ran again");
            Ok::<_, rusqlite::Error>("Jane Doe".repeat(50))
        })?;
        tx.commit().map_err(TxError::Work)?;
        Ok::<_, TxError<rusqlite::Error>>(reply)
    };
    assert!(!pay(everything(), true).unwrap().replayed);
    assert_eq!(pay(everything(), false).unwrap().value, "Jane Doe".repeat(50));
    for wrong in [sealed_by("2026-11", 1), sealed_by("b", 7), Protection::none()] {
        let refused = pay(wrong, false).unwrap_err();
        assert!(matches!(refused, TxError::Database(_)) && !refused.may_retry(), "{refused}");
    }
    assert!(!on_disk(&place, "Jane Doe"));
}

#[test]
fn phases_are_protected_too() {
    use semel::intent::fingerprint::Recipe;
    use semel::tx::{Phases, Started, TxError};
    const NAMES: [&str; 3] = ["reserve", "charge", "confirm"];
    let place = place();
    let mut db = plain(&place.path);
    semel::tx::sqlite::migrate(&db).unwrap();
    let phases = |protection: Protection| {
        let phases = Phases::new(&intent("k"), Recipe::default().bytes(b""), &NAMES).unwrap();
        // No caller waits for a lease here: each start takes over.
        phases.lease(std::time::Duration::ZERO).protect(protection)
    };
    let value = |name: &str| format!("Jane Doe {name}").repeat(50);
    {
        let tx = db.transaction().unwrap();
        let Started::Run(mut run) = blocking::start_tx::<String>(&phases(everything()), &tx).unwrap() else {
            panic!()
        };
        for name in &NAMES[..2] {
            blocking::phase_tx(&mut run, &tx, name, |_| Ok::<_, rusqlite::Error>(value(name))).unwrap();
        }
        tx.commit().unwrap();
    }
    assert!(!on_disk(&place, "Jane Doe"));
    let start = |db: &mut rusqlite::Connection, protection: Protection| {
        let tx = db.transaction().unwrap();
        blocking::start_tx::<String>(&phases(protection), &tx).map(drop)
    };
    // Fail closed: a caller that cannot read what is done does not go on.
    for wrong in [sealed_by("2026-11", 1), sealed_by("b", 7), Protection::none()] {
        let refused = start(&mut db, wrong).unwrap_err();
        assert!(matches!(refused, TxError::Database(_)) && !refused.may_retry(), "{refused}");
        assert!(refused.to_string().contains(&intent("k").id().to_string()), "{refused}");
    }
    // Results that have changed places are no results.
    let swap = "UPDATE semel_phase SET position = CASE position WHEN 0 THEN 10 ELSE 11 END;
                UPDATE semel_phase SET position = CASE position WHEN 10 THEN 1 ELSE 0 END";
    db.execute_batch(swap).unwrap();
    assert!(start(&mut db, everything()).unwrap_err().to_string().contains("seal is broken"));
    db.execute_batch(swap).unwrap();
    let tx = db.transaction().unwrap();
    let Started::Run(mut run) = blocking::start_tx::<String>(&phases(everything()), &tx).unwrap() else {
        panic!()
    };
    assert_eq!(run.next(), "confirm");
    assert_eq!(run.recall::<String>("charge").unwrap(), Some(value("charge")));
    for name in NAMES {
        let done =
            blocking::phase_tx(&mut run, &tx, name, |_| Ok::<_, rusqlite::Error>(value(name))).unwrap();
        assert_eq!((done.value, done.replayed), (value(name), name != "confirm"));
    }
    tx.commit().unwrap();
    assert!(!on_disk(&place, "Jane Doe"));
    let tx = db.transaction().unwrap();
    let ended = blocking::start_tx::<String>(&phases(everything()), &tx).unwrap();
    assert!(matches!(ended, Started::Replay(ended) if ended == value("confirm")));
    for wrong in [sealed_by("b", 7), Protection::none()] {
        let refused = blocking::start_tx::<String>(&phases(wrong), &tx).unwrap_err();
        assert!(matches!(refused, TxError::Database(_)), "{refused}");
    }
}

/// Whatever goes past a store into its tables is sealed like the rest, also where others stand around that store.
#[tokio::test]
async fn a_wrapper_of_a_protected_store_says_how_it_protects() {
    use semel::store::AnyStore;
    use semel::store::faulty::{Fault, Faulty};

    let seals = |store: &dyn Fn() -> Protection| {
        let outcome = store().protect(&intent("k").id(), Outcome::new(200, "secret")).unwrap();
        matches!(outcome.body, Body::Sealed(_))
    };
    let store = Protected::new(MemoryStore::new(), everything());
    assert!(seals(&|| store.protection()));
    let faulty = Faulty::new(store.clone(), |_| Fault::None);
    assert!(seals(&|| faulty.protection()));
    let any = AnyStore::new(faulty);
    assert!(seals(&|| any.protection()));
    assert!(!seals(&|| MemoryStore::new().protection()));
}
