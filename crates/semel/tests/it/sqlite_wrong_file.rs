//! What is not a file of ours is refused in one line that says what to do, and left as it is.

use std::fs;
use std::path::Path;
use std::time::Duration;

use semel::store::sqlite::{SqliteStore, schema};
use semel::store::{ErrorKind, Fate, Store};

use crate::sqlite_support::*;

async fn refusal(path: &Path) -> (ErrorKind, String) {
    let options = SqliteStore::options().busy_timeout(Duration::from_millis(20));
    let error = error_of(options.open(path).await);
    assert_eq!(error.fate(), Fate::NotApplied);
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message}");
    assert!(message.contains(path.file_name().unwrap().to_str().unwrap()), "{message}");
    (error.kind(), message)
}

#[tokio::test]
async fn paths_that_cannot_work() {
    let place = place();
    let dir = place.dir.path();
    fs::write(dir.join("file"), "x").unwrap();
    for (path, says) in [
        (dir.to_owned(), "is a directory; name a file in it"),
        (dir.join("missing/semel.db"), "create that directory first"),
        (dir.join("file/semel.db"), "is not a directory"),
    ] {
        let (kind, message) = refusal(&path).await;
        assert_eq!(kind, ErrorKind::Misconfigured, "{message}");
        assert!(message.contains(says), "{message}");
    }
    let error = error_of(SqliteStore::options().create(false).open(&place.path).await);
    assert!(error.to_string().contains("does not exist; check the path"), "{error}");
    assert!(!place.path.exists());
    assert_eq!(error_of(SqliteStore::open("").await).kind(), ErrorKind::Misconfigured);
}

// Permissions do not bind root, who may run the tests; not even root can create files in /proc.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_directory_that_cannot_be_written() {
    let (kind, message) = refusal(Path::new("/proc/semel.db")).await;
    assert_eq!(kind, ErrorKind::Misconfigured, "{message}");
    assert!(message.contains("check that its directory is writable"), "{message}");
}

#[tokio::test]
async fn names_sqlite_reads_a_meaning_into_are_plain_files() {
    let place = place();
    for name in [":memory:", "file:x?mode=memory", "a%20b"] {
        let path = place.dir.path().join(name);
        done(&SqliteStore::open(&path).await.unwrap(), "k").await;
        assert!(path.is_file(), "{name}");
    }
}

#[tokio::test]
async fn garbage_is_not_a_database() {
    let place = place();
    let garbage = "this is not a database, ".repeat(500);
    fs::write(&place.path, &garbage).unwrap();
    let (kind, message) = refusal(&place.path).await;
    assert_eq!(kind, ErrorKind::Corrupt);
    assert!(message.contains("is not an SQLite database"), "{message}");
    assert_eq!(fs::read_to_string(&place.path).unwrap(), garbage);
}

#[tokio::test]
async fn a_database_of_another_application_is_left_alone() {
    let place = place();
    plain(&place.path).execute_batch("CREATE TABLE theirs (x)").unwrap();
    let before = fs::read(&place.path).unwrap();
    let (kind, message) = refusal(&place.path).await;
    assert_eq!(kind, ErrorKind::Misconfigured);
    assert!(message.contains("belongs to another application"), "{message}");
    assert_eq!(fs::read(&place.path).unwrap(), before);

    plain(&place.path).execute_batch("DROP TABLE theirs; PRAGMA application_id = 7").unwrap();
    assert!(refusal(&place.path).await.1.contains("belongs to another application"));
}

#[tokio::test]
async fn a_file_of_the_next_version_is_taken_and_a_newer_one_refused() {
    let place = place();
    done(&SqliteStore::open(&place.path).await.unwrap(), "k").await;
    plain(&place.path).pragma_update(None, "user_version", schema::VERSION + 1).unwrap();
    assert!(SqliteStore::open(&place.path).await.is_ok());
    plain(&place.path).pragma_update(None, "user_version", schema::VERSION + 2).unwrap();
    let (kind, message) = refusal(&place.path).await;
    assert_eq!(kind, ErrorKind::Misconfigured);
    assert!(message.contains("newer semel") && message.contains("upgrade semel"), "{message}");
    assert!(schema::migrate(&place.path).await.is_err());
}

#[tokio::test]
async fn a_file_locked_by_somebody_else_is_refused_for_now() {
    let place = place();
    let other = plain(&place.path);
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let (kind, message) = refusal(&place.path).await;
    assert_eq!(kind, ErrorKind::Unavailable);
    assert!(message.contains("is locked by another process"), "{message}");
    other.execute_batch("ROLLBACK").unwrap();
    done(&SqliteStore::open(&place.path).await.unwrap(), "k").await;
}

#[tokio::test]
async fn the_printed_schema_is_the_one_in_use() {
    let place = place();
    let by_hand = plain(&place.path);
    by_hand.execute_batch(schema::SQL).unwrap();
    let number = |pragma| by_hand.pragma_query_value(None, pragma, |row| row.get::<_, u32>(0)).unwrap();
    assert_eq!(number("user_version"), schema::VERSION);
    assert_eq!(number("application_id"), schema::APPLICATION_ID);
    assert_eq!(schema::migrate(&place.path).await.unwrap(), schema::VERSION);
    done(&SqliteStore::open(&place.path).await.unwrap(), "k").await;
}

#[tokio::test]
async fn people_can_look_inside() {
    let place = place();
    let store = SqliteStore::open(&place.path).await.unwrap();
    done(&store, "order-1").await;
    let lapsed = semel::store::Claim { lease_ms: 0, ..claim("order-2") };
    let lapsed = run(&store, lapsed).await;
    // The view's clock is counted in days, and may be a millisecond behind.
    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    // Beside the store, while it is open.
    let (id, state, operation, key, created): (String, String, String, String, String) = plain(&place.path)
        .query_row("SELECT id, state, operation, key, created_at FROM intents LIMIT 1", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        })
        .unwrap();
    assert_eq!((id, state.as_str()), (lapsed.id.to_string(), "uncertain"));
    assert_eq!((operation.as_str(), key.as_str()), ("payment.create", "order-2"));
    assert!(created.starts_with("20") && created.len() == 19, "{created}");
    let states: Vec<String> = plain(&place.path)
        .prepare("SELECT state FROM intents")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(states, ["uncertain", "completed"]);
    assert!(store.get(lapsed.id).await.unwrap().is_some());
}

#[tokio::test]
async fn a_file_of_the_first_version_is_brought_up_and_keeps_what_it_knows() {
    let place = place();
    let store = SqliteStore::open(&place.path).await.unwrap();
    done(&store, "k").await;
    store.close().await;
    plain(&place.path).execute_batch("DROP TABLE lineage; PRAGMA user_version = 1").unwrap();
    assert_eq!(schema::migrate(&place.path).await.unwrap(), 1);
    assert_eq!(schema::migrate(&place.path).await.unwrap(), schema::VERSION);
    let store = SqliteStore::open(&place.path).await.unwrap();
    assert_eq!(replayed(&store, "k").await, "k");
    assert!(semel::store::Store::lineage(&store).await.unwrap().is_some());
}

#[tokio::test]
async fn a_lineage_stays_until_it_is_made_anew() {
    let place = place();
    let store = SqliteStore::open(&place.path).await.unwrap();
    let first = semel::store::Store::lineage(&store).await.unwrap();
    assert_eq!(
        semel::store::Store::lineage(&SqliteStore::open(&place.path).await.unwrap()).await.unwrap(),
        first
    );
    let second = schema::new_lineage(&place.path).await.unwrap();
    assert_ne!(Some(second), first);
    assert_eq!(semel::store::Store::lineage(&store).await.unwrap(), Some(second));
    assert!(schema::new_lineage(place.path.with_extension("typo")).await.is_err());
}
