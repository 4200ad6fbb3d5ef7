//! What Redis forgets: noticed where it can be, shown where it cannot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use semel::intent::fingerprint::Recipe;
use semel::store::redis::RedisStore;
use semel::store::{Claimed, ErrorKind, Fate, Finished, Store};
use semel::{Execution, Guard, GuardError, Key, Outcome, Scope, StoreDown};
use testkit::proxy::{Fault, Proxy};
use testkit::services::{Service, require};

use super::support::{
    Server, claim, completed, done, in_doubt, intent, open_at_last, options, replayed, run, settled,
};

const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

async fn created(server: &Server) -> RedisStore {
    options(&server.url(), "s").create().await.unwrap()
}

fn lost<T: std::fmt::Debug>(result: Result<T, semel::store::StoreError>) {
    let error = result.expect_err("a store without memory must not answer");
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Lost, Fate::NotApplied), "{error}");
    assert!(error.to_string().contains("accept-loss"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_during_traffic_lets_nothing_run_again() {
    let Some(_) = require(Service::Redis) else { return };
    let server = Server::start(&[]).await;
    let store = created(&server).await;
    let (flushed, ran_after) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let ended = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for task in 0..16 {
        let (store, flushed, ran_after) = (store.clone(), flushed.clone(), ran_after.clone());
        let ended = ended.clone();
        tasks.push(tokio::spawn(async move {
            let (mut finished, mut lost) = (Vec::new(), 0);
            for n in 0.. {
                let key = format!("{task}-{n}");
                let after = flushed.load(Ordering::SeqCst);
                match store.claim(claim(&key)).await {
                    Ok(Claimed::Run(ticket)) => {
                        ran_after.fetch_add(usize::from(after), Ordering::SeqCst);
                        if store
                            .finish(ticket, completed(&key))
                            .await
                            .is_ok_and(|it| it == Finished::Recorded)
                        {
                            finished.push(key);
                            ended.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::Lost => lost += 1,
                    other => panic!("{other:?}"),
                }
                if lost == 20 {
                    break;
                }
            }
            finished
        }));
    }
    // As long as it takes until there is traffic, within half a minute.
    for _ in 0..3_000 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if ended.load(Ordering::SeqCst) > 200 {
            break;
        }
    }
    server.say::<()>(&["FLUSHALL"]).await;
    flushed.store(true, Ordering::SeqCst);
    let mut finished = Vec::new();
    for task in tasks {
        finished.extend(tokio::time::timeout(Duration::from_secs(60), task).await.unwrap().unwrap());
    }
    assert!(finished.len() > 16, "there was no traffic");
    assert_eq!(ran_after.load(Ordering::SeqCst), 0, "claims were granted after the flush");
    // Whatever was done before is refused now, not run again; so is everything else that is asked.
    for key in finished.iter().take(50) {
        lost(store.claim(claim(key)).await);
    }
    lost(store.get(intent(&finished[0]).id()).await);
    lost(store.list(semel::store::Filter::default()).await);
    // A service that is restarted now does not begin anew either.
    lost(RedisStore::open(&server.patient_url()).await);
}

#[tokio::test]
async fn lost_memory_is_not_an_outage_to_run_through() {
    let Some(_) = require(Service::Redis) else { return };
    let server = Server::start(&[]).await;
    let guard = Guard::new(created(&server).await);
    let pay = guard.operation("pay").unwrap().store_down(StoreDown::Open);
    let (scope, key) = (Scope::tenant("acme").unwrap(), Key::new("k").unwrap());
    server.say::<()>(&["FLUSHALL"]).await;
    let print = Recipe::default().bytes(b"");
    let ran = Arc::new(AtomicUsize::new(0));
    let counted = ran.clone();
    let answer = pay
        .run(pay.intent(&scope, &key), print, move |_| async move {
            counted.fetch_add(1, Ordering::SeqCst);
            Execution::completed(Outcome::new(200, ""))
        })
        .await;
    assert!(matches!(&answer, Err(GuardError::StoreUnavailable(error)) if error.kind() == ErrorKind::Lost));
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn only_a_person_goes_on_after_a_loss() {
    let Some(_) = require(Service::Redis) else { return };
    let server = Server::start(&[]).await;
    let store = created(&server).await;
    let before = done(&store, "k").await;
    let memory = options(&server.url(), "s").memory().await.unwrap();
    assert!(memory.is_whole() && memory.generations.len() == 1, "{memory:?}");
    server.say::<()>(&["FLUSHALL"]).await;
    assert!(options(&server.url(), "s").memory().await.unwrap().is_empty());
    lost(store.claim(claim("k")).await);
    let after = options(&server.url(), "s").accept_loss().await.unwrap();
    assert!(after.is_whole() && after.generations != memory.generations, "{after:?}");
    // Running stores go on without being opened again, and epochs have risen over the loss.
    let ticket = run(&store, claim("k")).await;
    assert!(ticket.epoch > before.epoch);
    assert_eq!(store.finish(before, completed("zombie")).await.unwrap(), Finished::Stale);
}

#[tokio::test]
async fn a_part_that_is_lost_is_refused_and_the_rest_goes_on() {
    let Some(_) = require(Service::Redis) else { return };
    let server = Server::start(&[]).await;
    let store = created(&server).await;
    done(&store, "k").await;
    let bucket = u16::from_be_bytes([intent("k").id().as_bytes()[0], intent("k").id().as_bytes()[1]]) >> 6;
    let digit = |n: u16| char::from_digit(u32::from(n), 32).unwrap();
    let marker = format!("s{{{}{}}}", digit(bucket >> 5), digit(bucket % 32));
    assert_eq!(server.say::<u64>(&["DEL", &marker]).await, 1);
    lost(store.claim(claim("k")).await);
    let reopened = RedisStore::open(&server.patient_url()).await.unwrap();
    lost(reopened.claim(claim("k")).await);
    done(&reopened, "another").await;
    let error = semel::store::migrate(&server.patient_url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "migrate must not repair in passing: {error}");
    options(&server.url(), "s").accept_loss().await.unwrap();
    assert_eq!(replayed(&store, "k").await, "k", "what was not lost is still known");
}

#[tokio::test]
async fn an_empty_restart_is_noticed() {
    let Some(_) = require(Service::Redis) else { return };
    let mut server = Server::start(&["--appendonly", "no"]).await;
    let store = created(&server).await;
    assert!(!store.capabilities().durable);
    done(&store, "k").await;
    server.restart().await;
    let error = loop {
        match store.claim(claim("k")).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => continue,
            other => break other,
        }
    };
    lost(error);
    lost(RedisStore::open(&server.patient_url()).await);
}

#[tokio::test]
async fn what_was_acknowledged_survives_sigkill_where_redis_says_always() {
    let Some(_) = require(Service::Redis) else { return };
    let mut server = Server::start(DURABLE).await;
    let store = created(&server).await;
    assert!(store.capabilities().durable);
    done(&store, "done").await;
    let running = claim("running");
    let ticket = run(&store, running.clone()).await;
    server.restart().await;
    let store = RedisStore::open(&server.patient_url()).await.unwrap();
    assert_eq!(replayed(&store, "done").await, "done");
    assert_eq!(run(&store, running).await, ticket);
}

#[tokio::test]
async fn a_replica_promoted_without_the_last_writes_has_forgotten_them_undetectably() {
    let Some(_) = require(Service::Redis) else { return };
    let primary = Server::start(&[]).await;
    let store = created(&primary).await;
    done(&store, "old").await;
    let between = Proxy::start(primary.address()).unwrap();
    let (host, port) = (between.addr().ip().to_string(), between.addr().port().to_string());
    let replica = Server::start(&["--replicaof", &host, &port]).await;
    // Once the replica is in step, a write is acknowledged when it has it.
    let patient = open_at_last(&format!("{}&replicas=1", primary.patient_url())).await;
    settled(&patient, &claim("in-step")).await;
    let waiting = open_at_last(&format!("{}?replicas=1&timeout=2000", primary.url())).await;
    between.set(Fault::Hang);
    // Without waiting for replicas this is acknowledged; with it, it is in doubt.
    done(&store, "late").await;
    in_doubt(async || waiting.claim(claim("waiting")).await).await;
    between.cut();
    drop(between);
    drop(primary);
    replica.say::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    let promoted = RedisStore::open(&replica.patient_url()).await.expect("nothing looks wrong");
    assert_eq!(replayed(&promoted, "old").await, "old");
    // The promise Redis cannot keep: this was done, acknowledged, and runs again.
    run(&promoted, claim("late")).await;
}

#[tokio::test]
async fn eviction_is_refused_at_the_start() {
    let Some(_) = require(Service::Redis) else { return };
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let server = Server::start(&["--maxmemory-policy", policy, "--maxmemory", "100mb"]).await;
        let error = options(&server.url(), "s").create().await.unwrap_err();
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Misconfigured, Fate::NotApplied));
        assert!(
            error.to_string().contains(policy) && error.to_string().contains("force=eviction"),
            "{error}"
        );
        let forced = RedisStore::options(&format!("{}&force=eviction", server.patient_url())).unwrap();
        done(&forced.create().await.unwrap(), "k").await;
    }
}

#[tokio::test]
async fn a_full_server_refuses_and_keeps_what_it_has() {
    let Some(_) = require(Service::Redis) else { return };
    let server = Server::start(&[]).await;
    let store = created(&server).await;
    done(&store, "k").await;
    let ticket = run(&store, claim("running")).await;
    server.say::<()>(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
    let error = store.claim(claim("new")).await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Full, Fate::NotApplied), "{error}");
    assert_eq!(store.finish(ticket, completed("x")).await.unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(replayed(&store, "k").await, "k");
    server.say::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(store.finish(ticket, completed("x")).await.unwrap(), Finished::Recorded);
}

#[tokio::test]
async fn a_server_that_does_not_tell_its_settings_is_not_believed_durable() {
    let Some(_) = require(Service::Redis) else { return };
    let settings = [DURABLE, &["--rename-command", "CONFIG", ""]].concat();
    let server = Server::start(&settings).await;
    let store = created(&server).await;
    assert!(!store.capabilities().durable);
    assert_eq!(store.settings()[0].appendfsync, None);
    done(&store, "k").await;
}
