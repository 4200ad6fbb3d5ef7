//! Broken connections: what is not known is said, and settled by asking again.

use semel::Owner;
use semel::store::postgres::PostgresStore;
use semel::store::{Claimed, ErrorKind, Fate, Finished, Store};
use testkit::proxy::{Fault, Proxy};

use super::place::{PATIENT, Place};
use super::work::*;

/// The store behind a proxy, on one lane that is connected. Its bounds are `more`.
async fn behind_proxy(place: &Place, more: &str) -> (PostgresStore, Proxy) {
    let address = place.server.rsplit_once('@').unwrap().1.split_once('/').unwrap().0;
    let proxy = Proxy::start(address).unwrap();
    let url = place.url_with(&format!("&{more}")).replace(address, &proxy.addr().to_string());
    place.store().await.close().await;
    let store = open_at_last(PostgresStore::options(&url).unwrap().connections(1)).await;
    warm_up(&store, &format!("warm-{}", place.schema)).await;
    (store, proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_lost_leaves_a_doubt_that_repeating_settles() {
    let Some(place) = Place::take() else { return };
    let (store, proxy) = behind_proxy(&place, PATIENT).await;
    let wish = claim("lost");

    proxy.set(Fault::DropResponse);
    let error = soon(store.claim(wish.clone())).await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::InDoubt), "{error}");
    assert_eq!(proxy.dropped(), 1);
    proxy.set(Fault::Pass);
    // The server has it. The same owner asking again gets the very claim it made.
    let person = place.client().await;
    let row = person.query_one("SELECT epoch, lease_until FROM semel_intent WHERE key = 'lost'", &[]).await;
    let row = row.unwrap();
    let Claimed::Run(ticket) = soon(store.claim(wish)).await.unwrap() else { panic!("not its own") };
    assert_eq!(
        (ticket.epoch.0, ticket.lease_until.0),
        (row.get::<_, i64>(0) as u64, row.get::<_, i64>(1) as u64)
    );
    assert_eq!(ticket.attempt, 1);
    assert!(matches!(soon(store.claim(claim("lost"))).await.unwrap(), Claimed::InFlight(_)));

    warm_up(&store, "warm again").await;
    proxy.set(Fault::DropResponse);
    let error = soon(store.finish(ticket, finish())).await.unwrap_err();
    assert_eq!(error.fate(), Fate::InDoubt, "{error}");
    proxy.set(Fault::Pass);
    assert_eq!(soon(store.finish(ticket, finish())).await.unwrap(), Finished::Already);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_reached_is_an_outage_and_nothing_happened() {
    let Some(place) = Place::take() else { return };
    let (store, proxy) = behind_proxy(&place, PATIENT).await;
    proxy.set(Fault::Refuse);
    proxy.cut();
    // The first to notice may have sent something into the broken connection.
    let _ = soon(store.claim(claim("first"))).await;
    for n in 0..20 {
        let error = soon(store.claim(claim(&format!("out-{n}")))).await.unwrap_err();
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotApplied), "{error}");
    }
    assert_eq!(soon(store.now()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    // Tried now and then, not by every caller.
    assert!(proxy.accepted() < 20, "{} connections were tried", proxy.accepted());
    proxy.set(Fault::Pass);
    soon(async {
        while store.claim(claim("back")).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    soon(async {
        while store.now().await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn looks_remember_an_outage_for_a_moment_and_do_not_all_try() {
    let Some(place) = Place::take() else { return };
    let (store, proxy) = behind_proxy(&place, PATIENT).await;
    soon(store.now()).await.unwrap();
    proxy.set(Fault::Refuse);
    proxy.cut();
    let before = proxy.accepted();
    for _ in 0..20 {
        let error = soon(store.now()).await.unwrap_err();
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotApplied), "{error}");
    }
    let tried = proxy.accepted() - before;
    assert!((1..20).contains(&tried), "{tried} connections were tried");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_is_given_up_in_bounded_time() {
    let Some(place) = Place::take() else { return };
    let (store, proxy) = behind_proxy(&place, "statement_timeout=200ms&connect_timeout=500ms").await;
    let wish = claim("hung");
    proxy.set(Fault::Hang);
    let error = soon(store.claim(wish.clone())).await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::InDoubt), "{error}");
    let error = soon(store.claim(claim("next"))).await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotApplied), "{error}");
    proxy.set(Fault::Pass);
    // Whether it arrived after all or not: it is its owner's. While it is on its way it has no owner.
    let claimed = soon(async {
        loop {
            match store.claim(wish.clone()).await {
                Ok(Claimed::InFlight(met)) if met.record.head.owner == Owner::NONE => {}
                Ok(claimed) => return claimed,
                Err(_) => {}
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(matches!(claimed, Claimed::Run(_)), "{claimed:?}");
}
