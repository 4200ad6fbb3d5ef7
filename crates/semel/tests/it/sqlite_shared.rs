//! Several stores, also in several processes, on one file.

use std::collections::HashSet;
use std::process::{Command, Stdio};

use futures_util::future::join_all;
use semel::store::sqlite::SqliteStore;
use semel::store::{Claimed, Store};

use crate::sqlite_support::*;

const KEYS: usize = 150;

/// Claims every key and returns the epochs of those it got.
async fn claim_all(store: SqliteStore) -> Vec<(usize, u64)> {
    let tasks = (0..KEYS).map(|n| {
        let store = store.clone();
        tokio::spawn(async move {
            match store.claim(claim(&format!("k{n}"))).await.unwrap() {
                Claimed::Run(ticket) => Some((n, ticket.epoch.0)),
                Claimed::InFlight(_) => None,
                other => panic!("{other:?}"),
            }
        })
    });
    join_all(tasks).await.into_iter().filter_map(Result::unwrap).collect()
}

fn assert_each_once(claimed: &[(usize, u64)]) {
    let keys: HashSet<usize> = claimed.iter().map(|(n, _)| *n).collect();
    let epochs: HashSet<u64> = claimed.iter().map(|(_, epoch)| *epoch).collect();
    assert_eq!((claimed.len(), keys.len(), epochs.len()), (KEYS, KEYS, KEYS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_stores_one_gets_the_claim() {
    let place = place();
    // Opened at the same moment, and none of them was there before.
    let stores = join_all((0..3).map(|_| open_among_others(&place.path))).await;
    let tasks = stores.into_iter().map(|store| tokio::spawn(claim_all(store)));
    let claimed: Vec<_> = join_all(tasks).await.into_iter().flat_map(Result::unwrap).collect();
    assert_each_once(&claimed);
}

#[test]
fn of_several_processes_one_gets_the_claim() {
    let place = place();
    let children: Vec<_> = (0..3)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["sqlite_shared::one_of_several_processes", "--exact", "--ignored", "--nocapture"])
                .env("SEMEL_TEST_FILE", &place.path)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut claimed = Vec::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let Some(pair) = line.strip_prefix("claimed ") else { continue };
            let (n, epoch) = pair.split_once(' ').unwrap();
            claimed.push((n.parse().unwrap(), epoch.parse().unwrap()));
        }
    }
    assert_each_once(&claimed);
}

#[test]
#[ignore = "started by of_several_processes_one_gets_the_claim"]
fn one_of_several_processes() {
    let path = std::env::var_os("SEMEL_TEST_FILE").unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        println!();
        for (n, epoch) in claim_all(open_among_others(path.as_ref()).await).await {
            println!("claimed {n} {epoch}");
        }
    });
}
