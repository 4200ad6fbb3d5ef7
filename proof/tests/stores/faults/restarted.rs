//! `kill -9` of a server in the middle of the load, and its start on what it has on disk.

use std::time::Duration;

use proof::load::Doubt;
use testkit::services::{Service, alone};

use crate::faults::place::Place;
use crate::faults::scene::{Scene, blocking};

/// A dead server is noticed before it is back.
const DEAD: Duration = Duration::from_millis(400);

async fn killed_and_started_again(service: Service) {
    let Some(mut server) = alone(service) else { return };
    let place = Place::on(service, server.url()).await;
    let scene = Scene::new(place.store().await);
    let fault = async || {
        blocking(|| server.kill()).expect("it is killed");
        tokio::time::sleep(DEAD).await;
        blocking(|| server.start()).expect("it starts again");
    };
    let judgement = scene.under(&format!("{service} killed"), Doubt::None, fault).await;
    assert!(judgement.expect_clean().unavailable > 0, "no caller noticed: {judgement}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_is_killed_and_started_again() {
    killed_and_started_again(Service::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_is_killed_and_started_again() {
    killed_and_started_again(Service::Mariadb).await;
}

/// Slow: a server of its own, set up from nothing and started twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_is_killed_and_started_again() {
    killed_and_started_again(Service::Mysql).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_killed_and_started_again() {
    killed_and_started_again(Service::Redis).await;
}
