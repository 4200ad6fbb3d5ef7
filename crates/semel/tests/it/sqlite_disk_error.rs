//! A disk that fails in the middle of a commit: a real process whose files may not grow any more.

use std::process::Command;

use semel::store::sqlite::SqliteStore;
use semel::store::{Claimed, ErrorKind, Fate, Store};

use crate::sqlite_support::*;

#[tokio::test]
async fn a_commit_that_fails_on_disk_is_in_doubt_and_loses_nothing_acknowledged() {
    let place = place();
    done(&SqliteStore::open(&place.path).await.unwrap(), "first").await;
    // With SIGXFSZ ignored a write beyond the limit is an I/O error to SQLite, not a full disk.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 400; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["sqlite_disk_error::on_a_failing_disk", "--exact", "--ignored", "--nocapture"])
        .env("SEMEL_TEST_FILE", &place.path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let acknowledged: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("kept ")).collect();
    assert!(acknowledged.len() > 3, "{said}");

    let store = SqliteStore::open(&place.path).await.unwrap();
    for key in acknowledged {
        assert!(matches!(store.claim(claim(key)).await.unwrap(), Claimed::InFlight(_)), "{key}");
    }
    assert_eq!(replayed(&store, "first").await, "first");
    done(&store, "last").await;
}

#[test]
#[ignore = "started by a_commit_that_fails_on_disk_is_in_doubt_and_loses_nothing_acknowledged"]
fn on_a_failing_disk() {
    let path = std::env::var_os("SEMEL_TEST_FILE").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        println!();
        // The log is never started over, so it runs into the limit.
        let options = SqliteStore::options().checkpoint_pages(1_000_000);
        let store = options.open(path).await.unwrap();
        let mut failures = 0;
        for n in 0..1_000 {
            let key = format!("k{n}");
            match store.claim(claim(&key)).await {
                Ok(Claimed::Run(_)) => println!("kept {key}"),
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    assert_eq!(
                        (error.kind(), error.fate()),
                        (ErrorKind::Unavailable, Fate::InDoubt),
                        "{error}"
                    );
                    failures += 1;
                    // The writer opens the file anew each time; reading goes on.
                    assert!(store.get(intent("first").id()).await.unwrap().is_some());
                    if failures == 3 {
                        return;
                    }
                }
            }
        }
        panic!("the disk never failed");
    });
}
