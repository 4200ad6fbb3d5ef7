//! The write-ahead log does not grow with the load.

use semel::store::Store;
use semel::store::sqlite::SqliteStore;

use crate::sqlite_support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_stays_bounded_under_continuous_load() {
    const PAGES: u32 = 64;
    let place = place();
    let store = SqliteStore::options().checkpoint_pages(PAGES).open(&place.path).await.unwrap();
    let mut written = 0u64;
    let mut longest = 0;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..16 {
        let store = store.clone();
        tasks.spawn(async move {
            let (mut longest, mut written, mut before) = (0, 0u64, 0);
            for n in 0..120 {
                let ticket = run(&store, claim(&format!("{task}-{n}"))).await;
                store.finish(ticket, completed(&"x".repeat(2_000))).await.unwrap();
                let pages = store.log_pages();
                longest = pages.max(longest);
                written += u64::from(pages.saturating_sub(before));
                before = pages;
            }
            (longest, written)
        });
    }
    while let Some(done) = tasks.join_next().await {
        let (l, w) = done.unwrap();
        longest = longest.max(l);
        written = written.max(w);
    }
    assert!(written > u64::from(20 * PAGES), "{written} pages are not enough to show anything");
    // Four times is where the writer helps; the rest is what one commit may add.
    assert!(longest < 10 * PAGES, "{longest} pages");
    let bytes = std::fs::metadata(place.dir.path().join("semel.db-wal")).unwrap().len();
    assert!(bytes < u64::from(12 * PAGES) * 4_120, "{bytes} bytes");
}
