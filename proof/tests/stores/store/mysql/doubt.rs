//! A connection that breaks leaves doubt, never a wrong answer; asking again settles it.

use semel::store::mysql::MysqlStore;
use semel::store::{Claimed, ErrorKind, Fate, Finished, Store};
use testkit::proxy::{Fault, Proxy};

use super::support::*;

struct Behind {
    proxy: Proxy,
    store: MysqlStore,
    database: Database,
}

async fn behind() -> Option<Behind> {
    behind_with(PATIENT).await
}

/// The store's bounds are what its URL ends with.
async fn behind_with(bounds: &str) -> Option<Behind> {
    let database = Database::new().await?;
    // The tables are made with patience; what follows opens under its own bounds.
    database.store().await.close().await;
    let server = database.url.split_once('@').expect("a host").1.split_once('/').expect("a database").0;
    let proxy = Proxy::start(server).expect("a proxy");
    let url = database.url.replace(server, &proxy.addr().to_string()).replace(PATIENT, bounds);
    let options = MysqlStore::options().connections(1);
    let store = at_last(async || Some(options.clone().open(&url).await)).await;
    Some(Behind { proxy, store, database })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_answer_is_lost_is_in_doubt_and_settled_by_asking_again() {
    let Some(Behind { proxy, store, database: _database }) = behind().await else { return };
    for round in 0..10 {
        let claim = claim_of(&format!("lost-{round}"));
        // Just used, so that the connection is trusted and the claim is what goes out next.
        run_of(&store, &claim_of(&format!("warm-{round}"))).await;
        proxy.set(Fault::DropResponse);
        let error = soon(store.claim(claim.clone())).await.expect_err("no answer can come");
        proxy.set(Fault::Pass);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        // A machine slow enough to distrust the connection first has sent nothing.
        let in_doubt = error.fate() == Fate::InDoubt;
        let settled = settle(&store, &claim).await;
        assert!(matches!(settled, Claimed::Run(_)), "{settled:?}");
        let record = store.get(claim.intent.id()).await.unwrap().expect("the record");
        assert_eq!(record.attempts, 1);
        if in_doubt {
            return;
        }
    }
    panic!("no claim was ever in doubt");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_whose_answer_is_lost_is_in_doubt_and_settled_by_asking_again() {
    let Some(Behind { proxy, store, database: _database }) = behind().await else { return };
    for round in 0..10 {
        let ticket = run_of(&store, &claim_of(&format!("lost-{round}"))).await;
        proxy.set(Fault::DropResponse);
        let error = soon(store.finish(ticket, completed("x"))).await.expect_err("no answer can come");
        proxy.set(Fault::Pass);
        let in_doubt = error.fate() == Fate::InDoubt;
        let settled = at_last(async || Some(store.finish(ticket, completed("x")).await)).await;
        assert!(matches!(settled, Finished::Already | Finished::Recorded), "{settled:?}");
        if in_doubt {
            return;
        }
    }
    panic!("no outcome was ever in doubt");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_cut_at_any_byte_never_make_two_owners() {
    let Some(Behind { proxy, store, database: _database }) = behind().await else { return };
    let mut rng = testkit::seed::rng();
    for round in 0..25 {
        let claim = claim_of(&format!("cut-{round}"));
        let rival = semel::store::Claim { owner: semel::Owner::random(), ..claim.clone() };
        let bytes = rng.u64(1..3_000);
        proxy.cut();
        proxy.next(1, if rng.bool() { Fault::CutRequestAfter(bytes) } else { Fault::CutAnswerAfter(bytes) });
        let first = soon(store.claim(claim.clone())).await;
        let rivals = settle(&store, &rival).await;
        let mine = match first {
            Ok(met) => met,
            Err(_) => settle(&store, &claim).await,
        };
        let runs = [&mine, &rivals].into_iter().filter(|met| matches!(met, Claimed::Run(_))).count();
        assert_eq!(runs, 1, "cut after {bytes} bytes: {mine:?} and {rivals:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_be_reached_is_an_outage_in_which_nothing_was_applied() {
    let Some(Behind { proxy, store, database: _database }) = behind().await else { return };
    proxy.set(Fault::Refuse);
    proxy.cut();
    for n in 0..5 {
        let error = soon(store.claim(claim_of(&n.to_string()))).await.expect_err("no server is there");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.may_retry());
    }
    let error = soon(store.now()).await.expect_err("no server is there");
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotApplied));
    proxy.set(Fault::Pass);
    assert!(matches!(settle(&store, &claim_of("after")).await, Claimed::Run(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_says_nothing_is_given_up_on() {
    let short = "?connect-timeout-ms=4000&statement-timeout-ms=4000";
    let Some(Behind { proxy, store, database: _database }) = behind_with(short).await else { return };
    assert!(matches!(settle(&store, &claim_of("warm")).await, Claimed::Run(_)));
    proxy.set(Fault::Hang);
    let claim = claim_of("hanging");
    let error = soon(store.claim(claim.clone())).await.expect_err("no answer can come");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    proxy.set(Fault::Pass);
    assert!(matches!(settle(&store, &claim).await, Claimed::Run(_)));
}
