//! A server is killed at each named point of an event, and the provider sends again to another one.

use semel::crash;

use crate::hooks::place::Place;
use crate::hooks::provider::{Provider, counted};
use crate::hooks::server::{PATIENCE, Server};

async fn killed_at_every_point(place: Place) {
    let provider = Provider::stripe();
    for point in crash::IN_INBOX.into_iter().chain([crash::BEFORE_ANSWER]) {
        let mut server = Server::start(&place, "good", Some(point));
        let sent = tokio::spawn({
            let (provider, address) = (provider.clone(), server.address);
            async move { provider.send(address, point).await }
        });
        let mut server = tokio::task::spawn_blocking(move || {
            assert_eq!(server.child.wait_for_point(PATIENCE).unwrap(), point);
            server
        })
        .await
        .unwrap();
        assert!(!sent.is_finished(), "the provider was answered before {point}");
        server.child.kill().unwrap();
        assert_eq!(sent.await.unwrap(), None, "killed at {point}");
        let committed = [crash::AFTER_COMMIT, crash::BEFORE_ANSWER].contains(&point);
        assert_eq!(place.effects(point).await, i64::from(committed), "killed at {point}");

        let server = Server::start(&place, "good", None);
        for _ in 0..2 {
            assert_eq!(provider.send(server.address, point).await, Some(200), "killed at {point}");
            assert_eq!(place.effects(point).await, 1, "killed at {point}");
        }
        let counts = (counted(server.address, "accepted").await, counted(server.address, "replayed").await);
        assert_eq!(counts, if committed { (0, 2) } else { (1, 1) }, "killed at {point}");
    }
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_postgres_killed_at_every_point_handles_an_event_once() {
    let Some(place) = Place::postgres().await else { return };
    killed_at_every_point(place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_sqlite_killed_at_every_point_handles_an_event_once() {
    killed_at_every_point(Place::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_catches_a_success_that_is_answered_before_the_commit() {
    let Some(place) = Place::postgres().await else { return };
    let mut server = Server::start(&place, "early", Some(crash::BEFORE_COMMIT));
    let status = Provider::stripe().send(server.address, "early").await;
    let mut server = tokio::task::spawn_blocking(move || {
        server.child.wait_for_point(PATIENCE).unwrap();
        server
    })
    .await
    .unwrap();
    server.child.kill().unwrap();
    assert_eq!(status, Some(200));
    assert_eq!(place.effects("early").await, 0, "the provider will not send it again, and it is lost");
    place.end().await;
}
