//! How many messages of a handler's call were handled before: who marks them knows, and the consumer wants to count.

use std::cell::RefCell;
use std::collections::HashSet;
use std::future::Future;

use super::mark::Mark;

tokio::task_local! {
    static REPEATS: RefCell<HashSet<Mark>>;
}

/// Does something, and says how many different messages it found marked. Only what it marks in its own task is seen.
pub(super) async fn counting<T>(work: impl Future<Output = T>) -> (T, usize) {
    REPEATS
        .scope(RefCell::default(), async {
            let done = work.await;
            (done, REPEATS.with(|repeats| repeats.borrow().len()))
        })
        .await
}

/// A message was marked. A transaction that is run again marks it again.
pub(super) fn marked(mark: Mark, fresh: bool) {
    // Nobody counts outside of a consumer's call.
    let _ = REPEATS.try_with(|repeats| match fresh {
        true => repeats.borrow_mut().remove(&mark),
        false => repeats.borrow_mut().insert(mark),
    });
}
