//! What a server or a pooler says in the middle of a request, and what the caller learns of it.

use std::time::Duration;

use futures_util::future::join_all;
use semel::Outcome;
use semel::store::postgres::PostgresStore;
use semel::store::{Claimed, ErrorKind, Fate, Finish, Store};

use super::between::{Act, BIND, Between, PARSE, QUERY};
use super::place::{PATIENT, Place, apart, clear_away};
use super::work::*;

async fn between(place: &Place) -> (Between, String) {
    let address = place.server.rsplit_once('@').unwrap().1.split_once('/').unwrap().0;
    let between = Between::start(address.to_owned()).await;
    let url =
        place.url_with(&format!("&sslmode=disable&{PATIENT}")).replace(address, &between.addr.to_string());
    (between, url)
}

async fn one_lane(url: &str) -> PostgresStore {
    let store = open_at_last(PostgresStore::options(url).unwrap().connections(1)).await;
    warm_up(&store, &format!("warm-{}", fastrand::u64(..))).await;
    store
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_ended_in_the_middle_is_doubt_whichever_side_says_so() {
    let Some(place) = Place::take() else { return };
    let (between, url) = between(&place).await;
    // 08…: poolers too. 40003: the server does not know itself.
    for (state, fate) in [
        ("08P01", Fate::InDoubt),
        ("08006", Fate::InDoubt),
        ("40003", Fate::InDoubt),
        ("57P01", Fate::InDoubt),
        ("40001", Fate::NotApplied),
        ("53200", Fate::NotApplied),
    ] {
        let store = one_lane(&url).await;
        let ticket = run(&store, &format!("finished-{state}")).await;
        between.at(BIND, "", Act::Refuse(state));
        let wish = claim(&format!("claimed-{state}"));
        let error = soon(store.claim(wish.clone())).await.unwrap_err();
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, fate), "{state}: {error}");
        between.pass();
        // Whatever it was, asking again under the same owner settles it.
        assert!(matches!(soon(store.claim(wish)).await.unwrap(), Claimed::Run(_)), "{state}");
        soon(store.finish(ticket, finish())).await.unwrap();
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_sqlstate_that_is_none_is_an_error_like_any_other() {
    let Some(place) = Place::take() else { return };
    let (between, url) = between(&place).await;
    let store = one_lane(&url).await;
    for state in ["", "0", "é"] {
        between.at(BIND, "", Act::Refuse(state));
        let error = soon(store.claim(claim("refused"))).await.unwrap_err();
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotApplied), "{error}");
        between.pass();
    }
    run(&store, "refused").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_outcome_that_cannot_be_fetched_is_one_callers_trouble() {
    for act in [Act::Refuse("53200"), Act::Cut, Act::Swallow] {
        let Some(place) = Place::take() else { return };
        let (between, url) = between(&place).await;
        // An outcome that does not come along with the answers to a batch, and two who ask for it.
        let store = one_lane(&format!("{url}&statement_timeout=6s")).await;
        let ticket = run(&store, "large").await;
        let outcome = Some(Outcome::new(200, vec![7; 100 << 10]));
        soon(store.finish(ticket, Finish { outcome, ..finish() })).await.unwrap();

        between.at(PARSE, "-- One record, and the time.", act);
        let keys = (0..32).map(|n| if n == 16 || n == 20 { "large".to_owned() } else { format!("new-{n}") });
        let wishes: Vec<_> = keys.map(|key| claim(&key)).collect();
        let results = soon(join_all(wishes.iter().map(|wish| store.claim(wish.clone())))).await;
        between.pass();
        for (wish, result) in wishes.iter().zip(results) {
            match (wish.intent.key().as_str(), result) {
                ("large", Err(error)) => {
                    let class = (error.kind(), error.fate());
                    assert_eq!(class, (ErrorKind::Unavailable, Fate::NotApplied), "{error}");
                }
                ("large", result) => panic!("{result:?}"),
                (key, result) => assert!(matches!(result, Ok(Claimed::Run(_))), "{key}: {result:?}"),
            }
        }
        // What was broken is not used again.
        let replay = soon(store.claim(claim("large"))).await.unwrap();
        let Claimed::Replay(existing) = replay else { panic!("{replay:?}") };
        assert_eq!(existing.record.outcome.as_ref().unwrap().body_bytes().unwrap().len(), 100 << 10);
    }
}

/// A role that goes away with this.
struct Role<'a>(&'a Place);

impl Drop for Role<'_> {
    fn drop(&mut self) {
        clear_away(&self.0.server, format!("DROP OWNED BY {0}; DROP ROLE {0}", self.0.schema));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_to_answer_while_a_session_is_set_up_is_given_up_in_bounded_time() {
    let Some(place) = Place::take() else { return };
    let (name, user) = (&place.schema, "//postgres@");
    assert!(place.server.contains(user), "another user than expected: {}", place.server);
    let role = format!("CREATE ROLE {name} LOGIN SUPERUSER; ALTER ROLE {name} SET synchronous_commit = off");
    apart(&place.server, role);
    let _role = Role(&place);
    let (between, url) = between(&place).await;
    let url = url.replace(user, &format!("//{name}@"));
    let store = one_lane(&format!("{url}&connect_timeout=300ms")).await;
    assert_eq!(store.settings().synchronous_commit, "off");

    between.at(QUERY, "SET synchronous_commit", Act::Swallow);
    let opened = soon(PostgresStore::open(&format!("{url}&connect_timeout=300ms"))).await;
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::Unavailable);
    // A look needs a connection of its own. Later ones do not wait for it for ever.
    let looks = [store.now(), store.now()];
    for result in soon(join_all(looks)).await {
        let error = result.unwrap_err();
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotApplied), "{error}");
    }
    between.pass();
    soon(async {
        while store.now().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    store.close().await;
}
