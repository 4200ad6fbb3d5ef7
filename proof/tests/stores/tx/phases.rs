//! Phases on PostgreSQL: resumed after the last commit, fenced, and never run twice.

use std::time::Duration;

use semel::intent::state::Ruling;
use semel::store::postgres::PostgresStore;
use semel::store::protect::{Keys, Protection, SealKey};
use semel::store::{Decide, Decided, Store};
use semel::tx::{PhaseRun, Phases, Started, TxError, TxReply};
use semel::{Effect, Outcome, Retention, State, Verdict};
use sqlx::{PgConnection, PgPool};

use crate::tx::world::{World, asked, book, intent};

const NAMES: [&str; 3] = ["reserve", "charge", "confirm"];
/// A lease that runs out while a test waits, and not while a slow machine takes two steps.
const SHORT: Duration = Duration::from_millis(1_500);
/// One that may run out at any time.
const VERY_SHORT: Duration = Duration::from_millis(200);

fn phases(key: &str) -> Phases {
    Phases::new(&intent(key), asked(1), &NAMES).unwrap().wait(Duration::ZERO)
}

async fn start(pool: &PgPool, phases: &Phases) -> Result<Started<i64>, TxError> {
    let mut tx = pool.begin().await.unwrap();
    let started = phases.start_tx(&mut tx).await;
    // Not dropped: sqlx rolls back some time after that, and the lock is held until then.
    if started.is_ok() {
        tx.commit().await.unwrap()
    } else {
        tx.rollback().await.unwrap()
    }
    started
}

async fn running(pool: &PgPool, phases: &Phases) -> PhaseRun {
    match start(pool, phases).await.unwrap() {
        Started::Run(run) => run,
        Started::Replay(value) => panic!("ended in {value}"),
    }
}

async fn phase(pool: &PgPool, run: &mut PhaseRun, name: &str) -> Result<TxReply<i64>, TxError<sqlx::Error>> {
    let mut tx = pool.begin().await.unwrap();
    let row = format!("{}-{name}", run.intent().key().as_str());
    let done = run.phase_tx(&mut tx, name, async |tx: &mut PgConnection| book(tx, &row, 1).await).await;
    let end = if done.is_ok() { tx.commit().await } else { tx.rollback().await };
    end.map_err(TxError::Work)?;
    done
}

#[tokio::test]
async fn a_retry_resumes_after_the_last_committed_phase() {
    let Some(world) = World::new().await else { return };
    let (pool, store) = (world.pool(4).await, PostgresStore::open(&world.url()).await.unwrap());
    let phases = phases("a").lease(SHORT);
    let mut first = running(&pool, &phases).await;
    assert_eq!(first.next(), "reserve");
    let reserved = phase(&pool, &mut first, "reserve").await.unwrap();
    let charged = phase(&pool, &mut first, "charge").await.unwrap();
    let key = first.child("confirm");
    drop(first);
    tokio::time::sleep(SHORT * 2).await;
    let mut retry = running(&pool, &phases).await;
    assert_eq!((retry.next(), retry.child("confirm")), ("confirm", key));
    assert_eq!(retry.recall::<i64>("charge").unwrap(), Some(charged.value));
    assert_eq!(retry.recall::<i64>("confirm").unwrap(), None);
    let again = phase(&pool, &mut retry, "reserve").await.unwrap();
    assert_eq!(again, TxReply { value: reserved.value, replayed: true });
    let record = store.get(intent("a").id()).await.unwrap().unwrap();
    assert_eq!(
        (record.head.state, record.head.effect, record.attempts),
        (State::InProgress, Effect::Keyed, 2)
    );
    let confirmed = phase(&pool, &mut retry, "confirm").await.unwrap();
    assert!(
        matches!(start(&pool, &phases).await.unwrap(), Started::Replay(value) if value == confirmed.value)
    );
    assert_eq!(store.get(intent("a").id()).await.unwrap().unwrap().head.state, State::Completed);
    assert_eq!(world.count("SELECT count(*) FROM semel_phase").await, 0);
    assert_eq!(world.count("SELECT count(*) FROM payment").await, 3);
    let other = Phases::new(&intent("a"), asked(2), &NAMES).unwrap();
    assert!(matches!(start(&pool, &other).await, Err(TxError::Mismatch)));
    pool.close().await;
    store.close().await;
    world.end().await;
}

#[tokio::test]
async fn an_owner_that_was_taken_over_is_fenced() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(4).await;
    let live = phases("live").lease(Duration::from_secs(60));
    let mut held = running(&pool, &live).await;
    phase(&pool, &mut held, "reserve").await.unwrap();
    assert!(matches!(start(&pool, &live).await, Err(TxError::InFlight { .. })), "its lease runs");
    let phases = phases("a").lease(SHORT);
    let mut slow = running(&pool, &phases).await;
    phase(&pool, &mut slow, "reserve").await.unwrap();
    tokio::time::sleep(SHORT * 2).await;
    let mut quick = running(&pool, &phases).await;
    // It lives and believes itself the owner; its transaction is refused before the work.
    assert!(matches!(phase(&pool, &mut slow, "charge").await, Err(TxError::Lost)));
    phase(&pool, &mut quick, "charge").await.unwrap();
    assert!(matches!(phase(&pool, &mut slow, "charge").await, Err(TxError::Lost)));
    phase(&pool, &mut quick, "confirm").await.unwrap();
    assert!(matches!(phase(&pool, &mut slow, "confirm").await, Err(TxError::Lost)));
    assert_eq!(world.count("SELECT count(*) FROM payment").await, 3 + 1);
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn a_phase_is_not_taken_over_in_the_middle() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(4).await;
    let phases = phases("a").lease(SHORT);
    let mut run = running(&pool, &phases).await;
    let mut tx = pool.begin().await.unwrap();
    run.phase_tx(&mut tx, "reserve", async |tx| book(tx, "a", 1).await).await.unwrap();
    tokio::time::sleep(SHORT * 2).await;
    // The lease that others can see has run out; the open transaction keeps them out all the same.
    assert!(matches!(start(&pool, &phases).await, Err(TxError::InFlight { .. })));
    tx.commit().await.unwrap();
    tokio::time::sleep(SHORT * 2).await;
    assert_eq!(running(&pool, &phases).await.next(), "charge");
    // And the other way round: a phase does not wait behind a takeover that is not committed.
    let mut held = pool.begin().await.unwrap();
    tokio::time::sleep(SHORT * 2).await;
    assert!(matches!(phases.start_tx::<_, i64>(&mut held).await.unwrap(), Started::Run(_)));
    assert!(matches!(phase(&pool, &mut run, "charge").await, Err(TxError::InFlight { .. })));
    held.rollback().await.unwrap();
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn a_phase_that_was_not_committed_is_run_again_and_not_skipped() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(4).await;
    // The start and the first phase in one transaction, rolled back.
    let mut tx = pool.begin().await.unwrap();
    let Started::Run(mut run) = phases("a").start_tx::<_, i64>(&mut tx).await.unwrap() else { panic!() };
    run.phase_tx(&mut tx, "reserve", async |tx| book(tx, "a-reserve", 1).await).await.unwrap();
    tx.rollback().await.unwrap();
    assert!(matches!(phase(&pool, &mut run, "reserve").await, Err(TxError::Lost)), "the claim is gone, too");
    let mut run = running(&pool, &phases("a")).await;
    let mut tx = pool.begin().await.unwrap();
    run.phase_tx(&mut tx, "reserve", async |tx| book(tx, "a-reserve", 1).await).await.unwrap();
    tx.rollback().await.unwrap();
    assert!(matches!(phase(&pool, &mut run, "charge").await, Err(TxError::Lost)), "one was not committed");
    assert!(!phase(&pool, &mut run, "reserve").await.unwrap().replayed);
    assert!(matches!(phase(&pool, &mut run, "confirm").await, Err(TxError::Lost)), "one is left out");
    assert!(matches!(phase(&pool, &mut run, "nothing").await, Err(TxError::Value { .. })));
    phase(&pool, &mut run, "charge").await.unwrap();
    phase(&pool, &mut run, "confirm").await.unwrap();
    assert_eq!(world.count("SELECT count(*) FROM payment").await, 3);
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn a_changed_list_is_noticed() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(4).await;
    let begin = async |key: &str| {
        let mut run = running(&pool, &phases(key).lease(SHORT)).await;
        phase(&pool, &mut run, "reserve").await.unwrap();
        tokio::time::sleep(SHORT * 2).await;
    };
    let changed = |key: &str, names: &[&str]| Phases::new(&intent(key), asked(1), names).unwrap();
    begin("a").await;
    let longer = changed("a", &["reserve", "charge", "confirm", "notify"]);
    match start(&pool, &longer).await {
        Err(TxError::PhasesChanged { begun, now }) => {
            assert_eq!(
                (begun.as_str(), now.as_str()),
                ("reserve,charge,confirm", "reserve,charge,confirm,notify")
            );
        }
        other => panic!("{other:?}"),
    }
    // What is done has to be the same in any case.
    let other_start = changed("a", &["hold", "charge", "confirm"]).accept_changes_to_come();
    assert!(matches!(start(&pool, &other_start).await, Err(TxError::PhasesChanged { .. })));
    let run = running(&pool, &longer.accept_changes_to_come()).await;
    assert_eq!(run.next(), "charge");
    pool.close().await;
    world.end().await;
}

#[test]
fn lists_that_are_none() {
    for names in [&[][..], &["a", "a"], &[""], &["a,b"], &["x"; 65]] {
        assert!(Phases::new(&intent("a"), asked(1), names).is_err(), "{names:?}");
    }
}

/// Goes through the phases, breaking off now and then, as processes do.
async fn go_on(pool: &PgPool, key: &str, rng: &mut fastrand::Rng) -> bool {
    let phases = phases(key).lease(VERY_SHORT);
    let mut run = match start(pool, &phases).await {
        Ok(Started::Run(run)) => run,
        Ok(Started::Replay(_)) => return true,
        Err(error) if error.may_retry() => {
            tokio::time::sleep(VERY_SHORT / 10).await;
            return false;
        }
        Err(error) => panic!("{error}"),
    };
    for name in NAMES {
        match rng.u32(0..6) {
            // Dies between two phases, or is so slow that somebody takes over.
            0 => return false,
            1 => tokio::time::sleep(VERY_SHORT * 5 / 4).await,
            _ => {}
        }
        match phase(pool, &mut run, name).await {
            Ok(_) => {}
            Err(error) if error.may_retry() => return false,
            Err(error) => panic!("{error}"),
        }
    }
    true
}

#[tokio::test]
async fn many_processes_at_once_run_each_phase_once() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(16).await;
    let tasks: Vec<_> = (0..32)
        .map(|task: u64| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let mut rng = fastrand::Rng::with_seed(task);
                for n in 0..4 {
                    let key = format!("k{}-{n}", task / 4);
                    let mut tries = 0;
                    while !go_on(&pool, &key, &mut rng).await {
                        tries += 1;
                        assert!(tries < 2_000, "{key} is never done");
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(world.count("SELECT count(*) FROM payment").await, 32 * 3);
    assert_eq!(world.count("SELECT count(DISTINCT name) FROM payment").await, 32 * 3);
    assert_eq!(world.count("SELECT count(*) FROM semel_phase").await, 0);
    pool.close().await;
    world.end().await;
}

/// An operation that was abandoned, then decided by a person and forgotten after that.
#[tokio::test]
async fn a_sweep_takes_along_what_phases_left_behind() {
    let Some(world) = World::new().await else { return };
    let (pool, store) = (world.pool(4).await, PostgresStore::open(&world.url()).await.unwrap());
    let mut live = running(&pool, &phases("live")).await;
    phase(&pool, &mut live, "reserve").await.unwrap();
    for key in ["a", "b"] {
        let mut run = running(&pool, &phases(key).lease(SHORT)).await;
        phase(&pool, &mut run, "reserve").await.unwrap();
        phase(&pool, &mut run, "charge").await.unwrap();
    }
    tokio::time::sleep(SHORT * 2).await;
    for (key, retention) in [("a", Retention::Ms(0)), ("b", Retention::DAY)] {
        let seen = store.get(intent(key).id()).await.unwrap().unwrap().head.epoch;
        let decide = Decide {
            seen,
            ruling: Ruling::Applied(Verdict::Completed),
            outcome: Some(Outcome::new(200, "7")),
            retention,
            by: "kim".to_owned(),
            why: "looked it up".to_owned(),
        };
        let decided = store.decide(intent(key).id(), decide).await.unwrap();
        assert!(matches!(decided, Decided::Recorded), "{decided:?}");
    }
    let left = async |key: &str| {
        let id: String = intent(key).id().to_string();
        world.count(&format!("SELECT COUNT(*) FROM semel_phase WHERE encode(id, 'hex') = '{id}'")).await
    };
    assert!(left("a").await > 0 && left("b").await > 0);
    assert_eq!(store.sweep(100).await.unwrap(), 1);
    assert_eq!(left("a").await, 0, "its record is gone");
    assert!(left("b").await > 0, "its record is not");
    assert!(left("live").await > 0);
    phase(&pool, &mut live, "charge").await.unwrap();
    phase(&pool, &mut live, "confirm").await.unwrap();
    // The same key anew: nothing of the old run is found.
    assert_eq!(running(&pool, &phases("a")).await.next(), "reserve");
    pool.close().await;
    store.close().await;
    world.end().await;
}

#[tokio::test]
async fn results_are_stored_sealed_and_taking_over_needs_the_key() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(4).await;
    let keys = |id: &str, byte: u8| Keys::new(SealKey::new(id, [byte; 32]).unwrap());
    let sealed = |id: &str, byte| phases("a").lease(SHORT).protect(Protection::none().seal(keys(id, byte)));
    let work = async |_: &mut PgConnection| Ok::<_, sqlx::Error>("Jane Doe".to_owned());
    let mut run = running(&pool, &sealed("k", 7)).await;
    let mut tx = pool.begin().await.unwrap();
    run.phase_tx(&mut tx, "reserve", work).await.unwrap();
    tx.commit().await.unwrap();
    let readable = "SELECT COUNT(*) FROM semel_phase WHERE position('Jane Doe'::bytea IN outcome) > 0";
    assert_eq!(world.count(readable).await, 0);
    tokio::time::sleep(SHORT * 2).await;
    for wrong in [sealed("k", 8), sealed("other", 7), phases("a")] {
        let refused = start(&pool, &wrong).await.unwrap_err();
        assert!(refused.to_string().contains("cannot be read") && !refused.may_retry(), "{refused}");
    }
    let mut run = running(&pool, &sealed("k", 7)).await;
    assert_eq!(run.next(), "charge");
    assert_eq!(run.recall::<String>("reserve").unwrap().as_deref(), Some("Jane Doe"));
    for name in NAMES {
        let mut tx = pool.begin().await.unwrap();
        let done = run.phase_tx(&mut tx, name, work).await.unwrap();
        assert_eq!((done.value.as_str(), done.replayed), ("Jane Doe", name == "reserve"));
        tx.commit().await.unwrap();
    }
    assert_eq!(
        world
            .count("SELECT COUNT(*) FROM semel_intent WHERE position('Jane Doe'::bytea IN outcome) > 0")
            .await,
        0
    );
    let mut tx = pool.begin().await.unwrap();
    let ended = sealed("k", 7).start_tx::<_, String>(&mut tx).await.unwrap();
    assert!(matches!(ended, Started::Replay(value) if value == "Jane Doe"));
    tx.rollback().await.unwrap();
    assert!(start(&pool, &phases("a")).await.unwrap_err().to_string().contains("cannot be read"));
    pool.close().await;
    world.end().await;
}

/// The keys of remote calls are remembered for a while only: a start that might repeat one later is uncertain.
#[tokio::test]
async fn phases_do_not_go_on_once_a_remote_key_may_be_forgotten() {
    let Some(world) = World::new().await else { return };
    let (pool, store) = (world.pool(4).await, PostgresStore::open(&world.url()).await.unwrap());
    let phases = phases("a").lease(Duration::from_secs(60)).safe_for(Duration::from_secs(3_600));
    let mut first = running(&pool, &phases).await;
    phase(&pool, &mut first, "reserve").await.unwrap();
    let head = store.get(intent("a").id()).await.unwrap().unwrap().head;
    let safe_until = head.safe_until.expect("set by the first start");
    assert_eq!((head.state, head.effect, head.expires_at), (State::InProgress, Effect::Keyed, None));
    for _ in 0..3 {
        sqlx::query("UPDATE semel_intent SET lease_until = 1").execute(&pool).await.unwrap();
        let mut next = running(&pool, &phases).await;
        assert_eq!(next.next(), "charge");
        assert!(phase(&pool, &mut next, "reserve").await.unwrap().replayed);
        let head = store.get(intent("a").id()).await.unwrap().unwrap().head;
        assert_eq!(head.safe_until, Some(safe_until), "a takeover does not move it");
    }
    sqlx::query("UPDATE semel_intent SET lease_until = 1, expires_at = 2").execute(&pool).await.unwrap();
    assert!(matches!(start(&pool, &phases).await, Err(TxError::Uncertain { .. })));
    let seen = store.get(intent("a").id()).await.unwrap().unwrap();
    assert_eq!(seen.state_at(store.now().await.unwrap()), Some(State::Uncertain));
    let decide = Decide {
        seen: seen.head.epoch,
        ruling: Ruling::NotApplied,
        outcome: None,
        retention: Retention::DAY,
        by: "kim".to_owned(),
        why: "looked it up".to_owned(),
    };
    assert!(matches!(store.decide(intent("a").id(), decide).await.unwrap(), Decided::Recorded));
    let mut last = running(&pool, &phases).await;
    let head = store.get(intent("a").id()).await.unwrap().unwrap().head;
    assert!(head.safe_until > Some(safe_until), "it begins anew");
    for name in &NAMES[1..] {
        phase(&pool, &mut last, name).await.unwrap();
    }
    let head = store.get(intent("a").id()).await.unwrap().unwrap().head;
    assert_eq!((head.state, head.safe_until), (State::Completed, None));
    pool.close().await;
    store.close().await;
    world.end().await;
}
