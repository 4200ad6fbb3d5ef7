//! Each event many times at once, to two servers of which one is killed in the middle; forgers in between.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use testkit::seed::rng;
use tokio::sync::{Mutex, Semaphore};

use crate::hooks::place::Place;
use crate::hooks::provider::{Provider, counted};
use crate::hooks::server::Server;

const COPIES: usize = 6;
const ATTEMPTS_MAX: usize = 200;

fn events() -> usize {
    std::env::var("SEMEL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(40)
}

async fn each_event_once(place: Place) {
    let (mut rng, place) = (rng(), Arc::new(place));
    let servers =
        Arc::new(Mutex::new([Server::start(&place, "good", None), Server::start(&place, "good", None)]));
    let mut deliveries: Vec<(usize, bool)> =
        (0..events()).flat_map(|n| (0..=COPIES).map(move |copy| (n, copy == COPIES))).collect();
    rng.shuffle(&mut deliveries);
    let half = deliveries.len() / 2;
    let (at_once, left) = (Arc::new(Semaphore::new(24)), Arc::new(Semaphore::new(0)));
    let sends = deliveries.into_iter().enumerate().map(|(n, (event, forged))| {
        let (place, servers) = (Arc::clone(&place), Arc::clone(&servers));
        let (at_once, left) = (Arc::clone(&at_once), Arc::clone(&left));
        tokio::spawn(async move {
            let _turn = at_once.acquire().await.unwrap();
            left.add_permits(1);
            let event = format!("evt_{event:04}");
            let provider = if forged { Provider::forger() } else { Provider::stripe() };
            // As providers do: again, until it is a success, or a refusal that will stay one.
            for attempt in 0..ATTEMPTS_MAX {
                let to = servers.lock().await[(n + attempt) % 2].address;
                match provider.send(to, &event).await {
                    Some(200) => {
                        assert!(!forged, "a forgery was believed");
                        assert_eq!(
                            place.effects(&event).await,
                            1,
                            "{event}: success was answered before the commit"
                        );
                        return 200;
                    }
                    Some(401) => return 401,
                    Some(503) | None => tokio::time::sleep(Duration::from_millis(20)).await,
                    Some(other) => panic!("{event}: answered {other}"),
                }
            }
            panic!("{event} was never answered");
        })
    });
    let sends: Vec<_> = sends.collect();
    // Somewhere in the middle: half of them have begun, and some of those have not ended.
    let _ = left.acquire_many(half as u32).await.unwrap();
    let counts = {
        let mut servers = servers.lock().await;
        servers[0].child.kill().unwrap();
        servers[0] = Server::start(&place, "good", None);
        servers.each_ref().map(|server| server.address)
    };
    let mut answers = BTreeMap::new();
    for answer in join_all(sends).await {
        *answers.entry(answer.unwrap()).or_insert(0) += 1;
    }
    assert_eq!(answers, BTreeMap::from([(200, events() * COPIES), (401, events())]));
    assert_eq!(place.effects("%").await, events() as i64);
    for event in 0..events() {
        assert_eq!(place.effects(&format!("evt_{event:04}")).await, 1);
    }
    // The one that was killed took its counts along; the others have seen both.
    for result in ["accepted", "replayed", "forged"] {
        let both = counted(counts[0], result).await + counted(counts[1], result).await;
        assert!(both > 0, "{result}");
    }
    drop(servers);
    Arc::into_inner(place).unwrap().end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_duplicates_takes_effect_once_on_postgres() {
    let Some(place) = Place::postgres().await else { return };
    each_event_once(place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_duplicates_takes_effect_once_on_sqlite() {
    each_event_once(Place::sqlite()).await;
}
