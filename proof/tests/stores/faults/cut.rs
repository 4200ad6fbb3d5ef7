//! Connections that are cut after the request and before the answer, again and again.

use std::time::Duration;

use proof::load::Doubt;
use testkit::proxy::{Fault, Proxy};
use testkit::services::{Service, require};

use crate::faults::place::{Place, open_at_last};
use crate::faults::scene::Scene;

/// How often answers are lost under one load.
const CUTS: usize = 12;

async fn answers_are_lost(service: Service) {
    let Some(server) = require(service) else { return };
    let place = Place::on(service, server.url()).await;
    let proxy = Proxy::start(place.address()).expect("a proxy");
    let scene = Scene::new(open_at_last(&place.url_through(&proxy)).await);
    let fault = async || {
        for cut in 0..CUTS {
            // Now those who are under way get no answer; then those who are connected are cut.
            let before = proxy.dropped();
            proxy.set(Fault::DropResponse);
            let lost = async {
                while proxy.dropped() == before {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let _ = tokio::time::timeout(Duration::from_secs(5), lost).await;
            proxy.set(Fault::Pass);
            if cut % 3 == 0 {
                proxy.cut();
            }
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
    };
    let judgement = scene.under(&format!("{service} cut"), Doubt::None, fault).await;
    judgement.expect_clean();
    assert!(proxy.dropped() > 0, "no answer was lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_does_the_work_and_the_answers_are_lost() {
    answers_are_lost(Service::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_does_the_work_and_the_answers_are_lost() {
    answers_are_lost(Service::Mariadb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_does_the_work_and_the_answers_are_lost() {
    answers_are_lost(Service::Mysql).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_does_the_work_and_the_answers_are_lost() {
    answers_are_lost(Service::Redis).await;
}
