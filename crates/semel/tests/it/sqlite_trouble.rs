//! A file that fails while it is in use: clear errors, nothing lost, and work goes on when it is over.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use futures_util::future::join_all;
use semel::store::sqlite::SqliteStore;
use semel::store::{Claimed, ErrorKind, Fate, Filter, Store};

use crate::sqlite_support::*;

#[tokio::test]
async fn a_full_disk_loses_nothing_that_was_acknowledged() {
    let place = place();
    let small = SqliteStore::options().pages_max(30).open(&place.path).await.unwrap();
    let body = "x".repeat(300);
    let (mut kept, mut refused) = (Vec::new(), Vec::new());
    for n in 0.. {
        let key = format!("k{n}");
        let ticket = match small.claim(claim(&key)).await {
            Ok(Claimed::Run(ticket)) => ticket,
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert_eq!((error.kind(), error.fate()), (ErrorKind::Full, Fate::NotApplied), "{error}");
                assert!(error.to_string().contains("free some space"), "{error}");
                refused.push(key);
                if refused.len() == 3 {
                    break;
                }
                continue;
            }
        };
        if small.finish(ticket, completed(&body)).await.is_ok() {
            kept.push(key);
        }
    }
    assert!(kept.len() > 10, "{}", kept.len());
    // What needs no room still works.
    assert_eq!(replayed(&small, &kept[0]).await, body);
    // Many at once: each is refused for itself.
    let held = hold(&place.path);
    let replay = started(small.claim(claim(&kept[1])));
    let new: Vec<_> = ["n1", "n2", "n3"].map(|key| started(small.claim(claim(key)))).into();
    held.release();
    assert!(matches!(replay.await, Ok(Claimed::Replay(_))));
    for answer in join_all(new).await {
        assert!(matches!(&answer, Err(error) if error.kind() == ErrorKind::Full), "{answer:?}");
    }
    small.close().await;

    let roomy = SqliteStore::open(&place.path).await.unwrap();
    for key in &kept {
        assert_eq!(replayed(&roomy, key).await, body);
    }
    for key in &refused {
        done(&roomy, key).await;
    }
}

#[tokio::test]
async fn a_locked_file_is_waited_for_and_then_works_again() {
    let place = place();
    let options = SqliteStore::options().busy_timeout(Duration::from_millis(30));
    let store = options.open(&place.path).await.unwrap();
    done(&store, "before").await;
    let other = plain(&place.path);
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let waiting: Vec<_> = ["a", "b", "c"].map(|key| started(store.claim(claim(key)))).into();
    for answer in join_all(waiting).await {
        let error = error_of(answer);
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotApplied), "{error}");
        assert!(error.may_retry());
        assert!(error.to_string().contains("is locked by another process"), "{error}");
    }
    assert_eq!(error_of(store.sweep(1).await).kind(), ErrorKind::Unavailable);
    // Readers do not need the lock.
    assert!(store.get(intent("before").id()).await.unwrap().is_some());
    other.execute_batch("ROLLBACK").unwrap();
    for key in ["a", "b", "c"] {
        done(&store, key).await;
    }
}

#[tokio::test]
async fn a_damaged_page_is_said_to_be_damaged() {
    let place = place();
    let store = SqliteStore::open(&place.path).await.unwrap();
    for n in 0..200 {
        done(&store, &format!("k{n}")).await;
    }
    store.close().await;
    // Every page but the first, which holds the schema: as a disk gone bad would.
    let file = std::fs::OpenOptions::new().write(true).open(&place.path).unwrap();
    let len = file.metadata().unwrap().len();
    for page in (4096..len).step_by(4096) {
        file.write_all_at(&[0xA5; 4096], page).unwrap();
    }
    let store = SqliteStore::open(&place.path).await.unwrap();
    for error in [
        error_of(store.claim(claim("k1")).await),
        error_of(store.claim(claim("new")).await),
        error_of(store.get(intent("k1").id()).await),
        error_of(store.list(Filter { limit: 10, ..Filter::default() }).await),
    ] {
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Corrupt, Fate::NotApplied), "{error}");
        assert!(error.to_string().contains("restore it from a backup"), "{error}");
    }
}

#[tokio::test]
async fn a_file_that_was_replaced_is_not_written_to() {
    let place = place();
    let store = SqliteStore::open(&place.path).await.unwrap();
    done(&store, "k").await;
    std::fs::rename(&place.path, place.dir.path().join("moved.db")).unwrap();
    let error = error_of(store.claim(claim("k2")).await);
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotApplied), "{error}");
    assert!(error.to_string().contains("was moved or replaced"), "{error}");
    std::fs::rename(place.dir.path().join("moved.db"), &place.path).unwrap();
    done(&store, "k2").await;
}
