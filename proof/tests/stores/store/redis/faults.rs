//! Scripts that are forgotten, answers that are lost, servers that stand still or die.

use std::time::{Duration, Instant};

use semel::store::{Claimed, ErrorKind, Fate, Finished, Store};
use testkit::proxy::{Fault, Proxy};
use testkit::services::{Service, require};

use super::support::{
    Server, body_of, claim, completed, connect, done, fresh, open_at_last, options, prefix, replayed, run,
    say, settled,
};

#[tokio::test]
async fn a_forgotten_script_is_sent_again() {
    let Some(_) = require(Service::Redis) else { return };
    let server = Server::start(&[]).await;
    let store = fresh(&server.url(), "noscript").await;
    let mut connection = connect(&server.url()).await;
    for n in 0..5 {
        say::<()>(&mut connection, &["SCRIPT", "FLUSH"]).await;
        done(&store, &format!("k{n}")).await;
        assert_eq!(replayed(&store, &format!("k{n}")).await, format!("k{n}"));
    }
}

fn through(proxy: &Proxy) -> String {
    format!("redis://{}?connections=1", proxy.addr())
}

fn proxied(url: &str) -> Proxy {
    Proxy::start(url.trim_start_matches("redis://")).unwrap()
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_in_doubt_and_settled_by_repeating_it() {
    let Some(_) = require(Service::Redis) else { return };
    let server = Server::start(&[]).await;
    let proxy = proxied(&server.url());
    let store = options(&through(&proxy), &prefix("doubt")).create().await.unwrap();
    // So that the server knows the scripts: "unknown" would be an answer to lose as well.
    done(&store, "warm").await;
    let claim = claim("k");
    proxy.set(Fault::DropResponse);
    let error = store.claim(claim.clone()).await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::InDoubt), "{error}");
    proxy.set(Fault::Pass);
    let ticket = run(&store, claim.clone()).await;
    assert_eq!(ticket.attempt, 1, "it had gone through");
    proxy.set(Fault::DropResponse);
    let error = store.finish(ticket, completed("yes")).await.unwrap_err();
    assert_eq!(error.fate(), Fate::InDoubt);
    proxy.set(Fault::Pass);
    assert_eq!(store.finish(ticket, completed("another")).await.unwrap(), Finished::Already);
    assert_eq!(replayed(&store, "k").await, "yes");
}

#[tokio::test]
async fn a_request_cut_on_its_way_leaves_nothing_half_done() {
    let Some(_) = require(Service::Redis) else { return };
    let server = Server::start(&[]).await;
    let proxy = proxied(&server.url());
    let store = options(&through(&proxy), &prefix("cut")).create().await.unwrap();
    for (n, bytes) in [1_u64, 60, 120, 200, 300].into_iter().enumerate() {
        let claim = claim(&format!("k{n}"));
        proxy.next(1, Fault::CutRequestAfter(bytes));
        proxy.cut();
        // The first notices the dead connection, the second meets the one that is cut.
        let (mut failures, began) = (0, Instant::now());
        let ticket = loop {
            match store.claim(claim.clone()).await {
                Ok(Claimed::Run(ticket)) => break ticket,
                Ok(other) => panic!("{other:?}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
            failures += 1;
            assert!(began.elapsed() < Duration::from_secs(60), "it is not reached again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!(failures > 0 && ticket.attempt == 1, "{failures} failures, {ticket:?}");
    }
}

#[tokio::test]
async fn a_server_that_stands_still_is_an_outage_within_the_bound() {
    let Some(_) = require(Service::Redis) else { return };
    let server = Server::start(&[]).await;
    let proxy = proxied(&server.url());
    let name = prefix("hang");
    done(&options(&server.url(), &name).create().await.unwrap(), "k").await;
    let store = open_at_last(&format!("{}&prefix={name}&timeout=2000", through(&proxy))).await;
    proxy.set(Fault::Hang);
    let asked = tokio::time::timeout(Duration::from_secs(60), store.claim(claim("k"))).await;
    let error = asked.expect("bounded").unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::InDoubt), "{error}");
    proxy.set(Fault::Pass);
    assert_eq!(body_of(Ok(settled(&store, &claim("k")).await)), "k");
}

#[tokio::test]
async fn a_killed_server_is_an_outage_and_then_it_goes_on() {
    let Some(_) = require(Service::Redis) else { return };
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let store = options(&server.url(), "s").create().await.unwrap();
    done(&store, "k").await;
    server.kill();
    for _ in 0..5 {
        assert_eq!(store.claim(claim("k")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    // Once nothing answers, it is known that nothing was sent.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(store.claim(claim("k")).await.unwrap_err().fate(), Fate::NotApplied);
    server.restart().await;
    assert_eq!(body_of(Ok(settled(&store, &claim("k")).await)), "k");
}

#[tokio::test]
async fn a_replica_takes_no_claims() {
    let Some(_) = require(Service::Redis) else { return };
    let server = Server::start(&[]).await;
    let store = options(&server.url(), "s").create().await.unwrap();
    done(&store, "k").await;
    // A replica whose primary does not answer: it serves what it has, and takes no writes.
    server.say::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let error = store.claim(claim("new")).await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotApplied), "{error}");
    server.say::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    run(&store, claim("new")).await;
}

#[tokio::test]
async fn a_cluster_behind_a_plain_url_says_what_to_write() {
    let Some(cluster) = require(Service::RedisCluster) else { return };
    let node = cluster.url().split(',').next().unwrap().to_owned();
    let error = options(&node, &prefix("plain")).create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("redis+cluster://"), "{error}");
}

#[tokio::test]
async fn somebody_elses_key_is_not_taken_for_a_record() {
    let Some(_) = require(Service::Redis) else { return };
    let server = Server::start(&[]).await;
    let name = prefix("foreign");
    let store = options(&server.url(), &name).create().await.unwrap();
    done(&store, "k").await;
    let mut connection = connect(&server.url()).await;
    let pattern = format!("{name}{{??}}????????????????");
    let mut scan = ::redis::cmd("SCAN");
    scan.arg(0).arg("MATCH").arg(&pattern).arg("COUNT").arg(1_000_000);
    let (_, keys): (u64, Vec<Vec<u8>>) = scan.query_async(&mut connection).await.unwrap();
    assert_eq!(keys.len(), 1);
    for bytes in [&b"x"[..], &[0xff; 200]] {
        ::redis::cmd("SET").arg(&keys[0]).arg(bytes).query_async::<()>(&mut connection).await.unwrap();
        match store.claim(claim("k")).await {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
            Ok(Claimed::Run(_)) => panic!("a record that cannot be read let the work run"),
            Ok(other) => panic!("{other:?}"),
        }
    }
}
