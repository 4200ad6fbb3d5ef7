//! Protected journals: every law holds, nothing readable reaches the disk, what was moved is refused, and a process without
//! the key takes nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel::conformance::journal::LAWS;
use semel::saga::memory::MemoryJournal;
use semel::saga::sql::{self, SqlJournal};
use semel::saga::{
    AdminError, At, AtomicStep, BODY_BYTES_MAX, DecidedBy, Definition, EntryKind, HasUndo, Journal,
    NothingToUndo, ProtectedJournal, Refused, ResolvedAs, Saga, SagaAdmin, SagaEnd, SagaError, SagaFilter,
    SagaNumber, SagaResult, SagaStep, Sagas, SagasBuilder, Status, StepError, StepId, StepResult, StepSpec,
    StepTx, StepType, is_protected,
};
use semel::store::ErrorKind;
use semel::store::protect::{Keys, Protection, SealKey};
use semel::{Key, Scope};

use super::shop::{Does, Shop, completed, definition, journal, options};
use crate::captured_log::CapturedLog;

fn key(id: &str, byte: u8) -> SealKey {
    SealKey::new(id, [byte; 32]).unwrap()
}

fn everything() -> Protection {
    Protection::none().compress_above(200).seal(Keys::new(key("2026-11", 7)))
}

/// The new key writes, the old one still reads.
fn rotated() -> Protection {
    Protection::none().seal(Keys::new(key("2026-12", 8)).also_reading(key("2026-11", 7)).unwrap())
}

fn url(directory: &tempfile::TempDir) -> String {
    format!("sqlite:{}", directory.path().join("app.db").display())
}

#[tokio::test]
async fn every_law_holds() {
    let directory = tempfile::tempdir().unwrap();
    sql::migrate(&url(&directory)).await.unwrap();
    let in_sqlite = SqlJournal::open(&url(&directory)).await.unwrap();
    let compressing = Protection::none().compress_above(0);
    let journals: [Arc<dyn Journal>; 3] = [
        Arc::new(ProtectedJournal::new(MemoryJournal::new(), everything())),
        Arc::new(ProtectedJournal::new(in_sqlite, everything())),
        Arc::new(ProtectedJournal::new(MemoryJournal::new(), compressing)),
    ];
    for journal in journals {
        for (name, law) in LAWS {
            println!("{name}");
            law(&journal).await;
        }
    }
}

/// Writes a name into the database, and keeps it as its result.
struct Write;

impl StepType for Write {
    type Input = String;
    type Output = String;
    type Undo = HasUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::atomic("write")
    }
}

impl AtomicStep<()> for Write {
    async fn run(&self, tx: &mut StepTx<'_>, _: At<'_, ()>, name: &String) -> StepResult<String> {
        let db = tx.sqlite().ok_or_else(|| StepError::refused("no SQLite"))?;
        db.execute("INSERT INTO people (letters) VALUES (?1)", [name.len() as i64])?;
        Ok(format!("result of {name}"))
    }

    async fn undo(
        &self,
        tx: &mut StepTx<'_>,
        _: At<'_, ()>,
        name: &String,
        result: String,
    ) -> StepResult<()> {
        if result != format!("result of {name}") {
            return Err(StepError::refused("that is not the result"));
        }
        let db = tx.sqlite().ok_or_else(|| StepError::refused("no SQLite"))?;
        db.execute("DELETE FROM people WHERE letters = ?1", [name.len() as i64])?;
        Ok(())
    }
}

async fn secrets(saga: Saga<()>, name: String) -> SagaResult<String> {
    let first = saga.run(Write, name.clone()).await?;
    let said: Option<String> = saga.signal("word", None).await;
    saga.run(Write, format!("{name} again")).await?;
    match said.as_deref() {
        Some("Jane says no") => Err(Refused::new("Jane was refused")),
        _ => Ok(format!("outcome: {first}")),
    }
}

#[tokio::test]
async fn nothing_that_is_said_can_be_read_on_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    sql::migrate(&url(&directory)).await.unwrap();
    let file = directory.path().join("app.db");
    let db = rusqlite::Connection::open(&file).unwrap();
    db.execute_batch("CREATE TABLE people (letters INTEGER NOT NULL)").unwrap();
    let journal = ProtectedJournal::new(SqlJournal::open(&url(&directory)).await.unwrap(), everything());
    let mut builder = SagasBuilder::new(journal.clone(), ());
    let registered = builder.register(Definition::new("secrets", 1, secrets).atomic(Write)).unwrap();
    let sagas = builder.start();
    let acme = Scope::tenant("acme").unwrap();
    for (key, says) in [("order-1", "Jane says yes"), ("order-2", "Jane says no")] {
        let (name, key) = (format!("Jane of {says}"), Key::new(key).unwrap());
        let number = sagas.submit(&registered, &acme, &key, &name).await.unwrap();
        sagas.signal(number, "s", "word", &says).await.unwrap();
        match sagas.once(&registered, &acme, &key, &name).await.unwrap() {
            SagaEnd::Completed(outcome) => assert_eq!(outcome, "outcome: result of Jane of Jane says yes"),
            SagaEnd::Undone { why, .. } => assert_eq!(why, "Jane was refused"),
            SagaEnd::Abandoned => panic!("it was not abandoned"),
        }
    }
    let left: i64 = db.query_row("SELECT count(*) FROM people", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 2, "those of the refused one are undone, by their results");
    sagas.drain(Duration::from_secs(5)).await;

    // What the view shows are steps, and no values.
    let mut view = db.prepare("SELECT * FROM saga_executions").unwrap();
    assert_eq!(view.column_names().len(), 9, "no column was added");
    let shown = view.query_map([], |row| row.get::<_, String>("steps")).unwrap();
    let shown: Vec<String> = shown.map(Result::unwrap).collect();
    assert!(shown.len() == 2 && shown.iter().all(|steps| steps.contains("write#0")), "{shown:?}");
    for name in std::fs::read_dir(directory.path()).unwrap() {
        let path = name.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        assert!(!bytes.windows(4).any(|at| at == b"Jane"), "{} has a name", path.display());
    }
    // The test can fail: the same without protection.
    let plain = SqlJournal::open(&url(&directory)).await.unwrap();
    let mut builder = SagasBuilder::new(plain, ());
    let registered = builder.register(Definition::new("secrets", 1, secrets).atomic(Write)).unwrap();
    let sagas = builder.start();
    sagas.submit(&registered, &acme, &Key::new("order-3").unwrap(), &"Jane".to_owned()).await.unwrap();
    let found = |path: std::path::PathBuf| {
        std::fs::read(path).is_ok_and(|bytes| bytes.windows(4).any(|at| at == b"Jane"))
    };
    assert!(found(file.clone()) || found(directory.path().join("app.db-wal")));
}

/// A protected process over a journal in memory, in virtual time.
fn open(journal: &MemoryJournal, shop: &Shop, protection: Option<Protection>) -> Opened {
    let (journal, shop) = (journal.clone(), shop.clone());
    let mut sagas = match protection {
        Some(protection) => SagasBuilder::new(ProtectedJournal::new(journal, protection), shop),
        None => SagasBuilder::new(journal, shop),
    }
    .options(options());
    let order = sagas.register(definition(false)).unwrap();
    Opened { sagas: sagas.start(), order }
}

struct Opened {
    sagas: Sagas<Shop>,
    order: semel::saga::Registered<String, String>,
}

impl Opened {
    async fn once(&self, key: &str) -> Result<SagaEnd<String>, SagaError> {
        let (acme, key) = (Scope::tenant("acme").unwrap(), Key::new(key).unwrap());
        self.sagas.once(&self.order, &acme, &key, &"book".to_owned()).await
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_key_nothing_runs_and_nothing_is_taken() {
    for protection in
        [None, Some(Protection::none()), Some(Protection::none().seal(Keys::new(key("other", 9))))]
    {
        let log = CapturedLog::default();
        let _default = tracing::subscriber::set_default(log.clone());
        tracing::callsite::rebuild_interest_cache();
        let (journal, shop) = (journal(), Shop::default());
        let owner = open(&journal, &shop, Some(everything()));
        shop.script("mail", std::iter::repeat_n(Does::Fails, 2));
        let (acme, order) = (Scope::tenant("acme").unwrap(), Key::new("k").unwrap());
        let number = owner.sagas.submit(&owner.order, &acme, &order, &"book".to_owned()).await.unwrap();
        while shop.calls("mail") == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        owner.sagas.drain(Duration::from_secs(5)).await;
        let calls = shop.ledger().calls.len();
        let before = journal.look(number).await.unwrap().unwrap().row;

        let without = open(&journal, &shop, protection);
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(journal.look(number).await.unwrap().unwrap().row, before, "not taken");
        assert_eq!(shop.ledger().calls.len(), calls, "nothing ran");
        let text = log.take();
        assert!(text.contains("cannot be read here, so nothing is taken"), "{text}");
        without.sagas.drain(Duration::from_secs(5)).await;

        // With the key it goes on.
        let next = open(&journal, &shop, Some(rotated()));
        assert_eq!(next.once("k").await.unwrap(), completed());
    }
}

/// Most of a saga is sealed with the old key, and its newest entries with the new one.
#[tokio::test(start_paused = true)]
async fn a_process_without_the_newest_key_gives_the_saga_back_and_takes_no_other() {
    let (journal, shop) = (journal(), Shop::default());
    let old = open(&journal, &shop, Some(everything()));
    shop.script("truck", [Does::Fails]);
    let (acme, order) = (Scope::tenant("acme").unwrap(), Key::new("k").unwrap());
    let number = old.sagas.submit(&old.order, &acme, &order, &"book".to_owned()).await.unwrap();
    while shop.calls("truck") == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    old.sagas.drain(Duration::from_secs(5)).await;
    shop.script("mail", [Does::Fails]);
    let new = open(&journal, &shop, Some(rotated()));
    while shop.calls("mail") == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    new.sagas.drain(Duration::from_secs(5)).await;
    let calls = shop.ledger().calls.len();

    let old = open(&journal, &shop, Some(everything()));
    tokio::time::sleep(Duration::from_secs(300)).await;
    let row = journal.look(number).await.unwrap().unwrap().row;
    assert_eq!((row.worker, row.status), (None, Status::Waiting), "given back");
    assert_eq!(shop.ledger().calls.len(), calls, "nothing ran");
    let epoch = row.epoch;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(journal.look(number).await.unwrap().unwrap().row.epoch, epoch, "and not taken again");
    // Another process has the key.
    let new = open(&journal, &shop, Some(rotated()));
    assert_eq!(new.once("k").await.unwrap(), completed());
    assert_eq!(shop.effects().iter().filter(|name| *name == "charge").count(), 1);
    old.sagas.drain(Duration::from_secs(5)).await;
}

/// The old process runs a long call while somebody who has the new key approves.
#[tokio::test(start_paused = true)]
async fn a_signal_that_cannot_be_opened_reaches_a_process_that_can() {
    let (journal, shop, call) = (journal(), Shop::default(), Arc::new(tokio::sync::Barrier::new(2)));
    let open = |protection| {
        let journal = ProtectedJournal::new(journal.clone(), protection);
        let mut sagas = SagasBuilder::new(journal, shop.clone()).options(options());
        let call = Arc::clone(&call);
        let slow = Definition::new("slow", 1, approved).step(Slow(Some(call)));
        let slow = sagas.register(slow).unwrap();
        (sagas.start(), slow)
    };
    let (old, slow) = open(everything());
    let (acme, order) = (Scope::tenant("acme").unwrap(), Key::new("k").unwrap());
    let number = old.submit(&slow, &acme, &order, &"book".to_owned()).await.unwrap();
    while shop.calls("slow") == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let rotated_journal = ProtectedJournal::new(journal.clone(), rotated());
    let body = Bytes::from_static(b"\"yes\"");
    let approval = semel::saga::Signal { id: "a".into(), name: "approve".into(), body };
    rotated_journal.signal(number, approval).await.unwrap();
    call.wait().await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let stored = journal.load(number).await.unwrap().unwrap();
    assert_eq!(stored.record.row.status, Status::Waiting, "given back: {stored:?}");
    let kinds: Vec<_> = stored.entries.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [EntryKind::Begin, EntryKind::Done], "and its result is there");
    let (both, slow) = open(rotated());
    let end = both.once(&slow, &acme, &order, &"book".to_owned()).await.unwrap();
    assert_eq!(end, SagaEnd::Completed("yes".to_owned()));
    assert_eq!(shop.calls("slow"), 1);
    old.drain(Duration::from_secs(5)).await;
}

/// Takes until the test lets it go.
struct Slow(Option<Arc<tokio::sync::Barrier>>);

impl StepType for Slow {
    type Input = String;
    type Output = String;
    type Undo = NothingToUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::keyed("slow")
    }
}

impl SagaStep<Shop> for Slow {
    async fn run(&self, at: At<'_, Shop>, _sku: &String) -> StepResult<String> {
        let answer = at.app.call("slow", at.key(), true).await;
        if let Some(call) = &self.0 {
            call.wait().await;
        }
        answer
    }
}

async fn approved(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
    saga.run(Slow(None), sku).await?;
    let said: Option<String> = saga.signal("approve", None).await;
    Ok(said.unwrap_or_default())
}

/// The same id, and other bytes: it shows only when it is opened.
#[tokio::test(start_paused = true)]
async fn a_process_with_a_wrong_key_keeps_no_saga() {
    let log = CapturedLog::default();
    let _default = tracing::subscriber::set_default(log.clone());
    tracing::callsite::rebuild_interest_cache();
    let (journal, shop) = (journal(), Shop::default());
    let owner = open(&journal, &shop, Some(everything()));
    shop.script("truck", [Does::Fails, Does::Fails, Does::Fails]);
    let acme = Scope::tenant("acme").unwrap();
    for key in ["a", "b", "c"] {
        let key = Key::new(key).unwrap();
        owner.sagas.submit(&owner.order, &acme, &key, &"book".to_owned()).await.unwrap();
    }
    while shop.calls("truck") < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    owner.sagas.drain(Duration::from_secs(5)).await;
    let calls = shop.ledger().calls.len();
    let wrong = open(&journal, &shop, Some(Protection::none().seal(Keys::new(key("2026-11", 9)))));
    let (mut epochs, mut free) = (0, 0);
    for _ in 0..300 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let listed = journal.list(SagaFilter::default()).await.unwrap();
        free += listed.iter().filter(|record| record.row.worker.is_none()).count();
        epochs = listed.iter().map(|record| record.row.epoch).max().unwrap();
    }
    assert_eq!(shop.ledger().calls.len(), calls, "nothing ran");
    assert!(free > 850, "{free} of 900: not held");
    assert!((3..20).contains(&epochs), "{epochs}: put off, and tried again");
    let text = log.take();
    assert!(text.contains("cannot be opened and is put off"), "{text}");
    assert!(text.contains("seal is broken"), "{text}");
    let right = open(&journal, &shop, Some(everything()));
    for key in ["a", "b", "c"] {
        assert_eq!(right.once(key).await.unwrap(), completed());
    }
    assert_eq!(shop.effects().iter().filter(|name| *name == "charge").count(), 3);
    wrong.sagas.drain(Duration::from_secs(5)).await;
}

/// A row of the journal is copied over another one by somebody who can write to the database.
#[tokio::test]
async fn a_value_that_was_moved_or_changed_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    sql::migrate(&url(&directory)).await.unwrap();
    let db = rusqlite::Connection::open(directory.path().join("app.db")).unwrap();
    db.execute_batch("CREATE TABLE people (letters INTEGER NOT NULL)").unwrap();
    let journal = ProtectedJournal::new(SqlJournal::open(&url(&directory)).await.unwrap(), everything());
    let mut builder = SagasBuilder::new(journal.clone(), ());
    let registered = builder.register(Definition::new("secrets", 1, secrets).atomic(Write)).unwrap();
    let sagas = builder.start();
    let acme = Scope::tenant("acme").unwrap();
    let mut numbers = Vec::new();
    for (key, name) in [("order-1", "Jane"), ("order-2", "John")] {
        let (key, name) = (Key::new(key).unwrap(), name.to_owned());
        let number = sagas.submit(&registered, &acme, &key, &name).await.unwrap();
        sagas.signal(number, "s", "word", &"Jane says yes").await.unwrap();
        sagas.once(&registered, &acme, &key, &name).await.unwrap();
        numbers.push(number);
    }
    sagas.drain(Duration::from_secs(5)).await;
    let [SagaNumber(one), SagaNumber(two)] = numbers[..] else { panic!("two sagas") };
    save(&db);
    let write = "step = 'write' AND kind = 1";
    for (moves, what) in [
        // The result of another saga's step.
        (
            format!(
                "UPDATE semel_saga_entry AS e SET body = (SELECT o.body FROM semel_saga_entry o WHERE o.saga = {two} AND \
                 o.seq = e.seq) WHERE saga = {one} AND {write} AND nth = 0"
            ),
            "write#0",
        ),
        // Of another use of the step.
        (
            format!(
                "UPDATE semel_saga_entry SET body = (SELECT body FROM semel_saga_entry WHERE saga = {one} AND {write} AND \
                 nth = 1) WHERE saga = {one} AND {write} AND nth = 0"
            ),
            "write#0",
        ),
        // Its input as its result.
        (
            format!("UPDATE semel_saga_entry SET body = input WHERE saga = {one} AND {write} AND nth = 0"),
            "write#0",
        ),
        (
            format!("UPDATE semel_saga_entry SET kind = 5 WHERE saga = {one} AND {write} AND nth = 0"),
            "write#0",
        ),
        (format!("UPDATE semel_saga_entry SET op = 1 WHERE saga = {one} AND {write} AND nth = 0"), "write#0"),
        (
            format!(
                "UPDATE semel_saga SET input = (SELECT input FROM semel_saga WHERE n = {two}) WHERE n = {one}"
            ),
            "the input of the saga",
        ),
        (
            format!(
                "UPDATE semel_saga SET outcome = (SELECT outcome FROM semel_saga WHERE n = {two}) WHERE n = {one}"
            ),
            "the outcome of saga",
        ),
        (
            format!(
                "UPDATE semel_saga_signal SET body = (SELECT body FROM semel_saga_signal WHERE saga = {two}) WHERE \
                 saga = {one}"
            ),
            "the signal word",
        ),
        (
            format!("UPDATE semel_saga SET input = substr(input, 1, length(input) - 1) WHERE n = {one}"),
            "the input of the saga",
        ),
    ] {
        assert!(journal.load(SagaNumber(one)).await.unwrap().is_some(), "it was readable before");
        assert!(db.execute(&moves, []).unwrap() > 0, "{moves}");
        let error = journal.load(SagaNumber(one)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{moves}: {error}");
        assert!(error.to_string().contains(what) && error.to_string().contains("seal is broken"), "{error}");
        let listed = journal.list(SagaFilter::default()).await.unwrap();
        assert_eq!(listed.len(), 2, "the others can be listed");
        restore(&db);
    }
}

/// Copies what the journal has aside.
fn save(db: &rusqlite::Connection) {
    db.execute_batch(
        "CREATE TABLE saved_saga AS SELECT n, input, outcome FROM semel_saga; \
         CREATE TABLE saved_entry AS SELECT * FROM semel_saga_entry; \
         CREATE TABLE saved_signal AS SELECT * FROM semel_saga_signal;",
    )
    .unwrap();
}

fn restore(db: &rusqlite::Connection) {
    db.execute_batch(
        "UPDATE semel_saga SET input = (SELECT input FROM saved_saga s WHERE s.n = semel_saga.n), \
         outcome = (SELECT outcome FROM saved_saga s WHERE s.n = semel_saga.n); \
         DELETE FROM semel_saga_entry; INSERT INTO semel_saga_entry SELECT * FROM saved_entry; \
         DELETE FROM semel_saga_signal; INSERT INTO semel_saga_signal SELECT * FROM saved_signal;",
    )
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_person_without_the_key_records_nothing() {
    let (journal, shop) = (journal(), Shop::default());
    let owner = open(&journal, &shop, Some(everything()));
    shop.script("charge", [Does::TakesAndLosesTheAnswer]);
    let Err(SagaError::Parked { number, .. }) = owner.once("k").await else { panic!("it is parked") };
    owner.sagas.drain(Duration::from_secs(5)).await;
    let row = journal.look(number).await.unwrap().unwrap().row;
    let (by, charge) = (DecidedBy::new("ann", "the bank says so"), StepId { name: "charge".into(), nth: 0 });
    let applied = || ResolvedAs::Applied(Bytes::from_static(b"\"receipt of Jane\""));
    for protection in [None, Some(Protection::none())] {
        let without = open(&journal, &shop, protection);
        let refused = without.sagas.signal(number, "s", "word", &1).await;
        assert!(matches!(refused, Err(SagaError::Sealed { number: of }) if of == number), "{refused:?}");
        without.sagas.drain(Duration::from_secs(5)).await;
    }
    let without = [
        SagaAdmin::new(journal.clone()),
        SagaAdmin::new(ProtectedJournal::new(journal.clone(), Protection::none())),
    ];
    for admin in without {
        let signal = semel::saga::Signal { id: "s".into(), name: "word".into(), body: "1".into() };
        for refused in [
            admin.resolve(number, row.epoch, &charge, false, applied(), &by).await.map(drop),
            admin.retry(number, row.epoch, &by).await.map(drop),
            admin.cancel(number, &by).await.map(drop),
            admin.signal(number, signal).await.map(drop),
        ] {
            assert!(matches!(refused, Err(AdminError::Sealed { .. })), "{refused:?}");
        }
        let loaded = admin.load(number).await.unwrap().unwrap();
        assert!(is_protected(&loaded.record.input), "what is sealed is shown as sealed");
        assert!(loaded.export().unwrap_err().to_string().contains("compressed or sealed"));
    }
    assert_eq!(journal.look(number).await.unwrap().unwrap().row, row, "nothing was changed");
    let admin = SagaAdmin::new(ProtectedJournal::new(journal.clone(), rotated()));
    admin.resolve(number, row.epoch, &charge, false, applied(), &by).await.unwrap();
    let stored = journal.load(number).await.unwrap().unwrap();
    let bodies = stored.entries.iter().flat_map(|entry| [&entry.input, &entry.body]).flatten();
    assert!(
        bodies.clone().count() > 4 && bodies.clone().all(|body| is_protected(body)),
        "all of it is sealed"
    );
    let next = open(&journal, &shop, Some(rotated()));
    assert_eq!(next.once("k").await.unwrap(), SagaEnd::Completed("receipt of Jane".to_owned()));
}

/// The limit is on what is said: a result of that size has happened, and must fit.
#[tokio::test]
async fn the_largest_value_fits_into_its_envelope_and_comes_back() {
    let journal = ProtectedJournal::new(MemoryJournal::new(), everything());
    let compressing = ProtectedJournal::new(MemoryJournal::new(), Protection::none().compress_above(1_000));
    let noise: Vec<u8> = (0..BODY_BYTES_MAX).map(|_| fastrand::u8(..)).collect();
    for (n, body) in [
        Bytes::from(noise),
        Bytes::from(vec![b'x'; BODY_BYTES_MAX]),
        // As an envelope begins.
        Bytes::from_static(&[0xff, 1, 1, 3, 0]),
        Bytes::from_static(&[0xff]),
        Bytes::new(),
    ]
    .into_iter()
    .enumerate()
    {
        for journal in [&journal, &compressing] {
            let id = format!("s{n}");
            let saga = super::limits::new_saga(&id);
            let semel::saga::SagaStarted::New { number, .. } = journal.start(saga).await.unwrap() else {
                panic!("it is new")
            };
            let signal = semel::saga::Signal { id, name: "word".into(), body: body.clone() };
            journal.signal(number, signal).await.unwrap();
            let loaded = journal.load(number).await.unwrap().unwrap();
            assert_eq!(loaded.signals[0].body, body);
            let large = Bytes::from(vec![b'x'; BODY_BYTES_MAX + 1]);
            let large = semel::saga::Signal { id: "l".into(), name: "word".into(), body: large };
            assert_eq!(journal.signal(number, large).await.unwrap_err().kind(), ErrorKind::TooLarge);
        }
    }
}
