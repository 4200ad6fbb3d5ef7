//! Counts the duplicates in a handler's call: the inbox finds them when it marks, and the consumer reports them.

use std::cell::RefCell;
use std::collections::HashSet;
use std::future::Future;

use super::identity::Mark;

tokio::task_local! {
    static REPEATS: RefCell<HashSet<Mark>>;
}

/// Runs `work`, and returns how many distinct messages it found already marked. Counts only marks made in the same
/// task.
pub(super) async fn counting<T>(work: impl Future<Output = T>) -> (T, usize) {
    REPEATS
        .scope(RefCell::default(), async {
            let done = work.await;
            (done, REPEATS.with(|repeats| repeats.borrow().len()))
        })
        .await
}

/// A message was marked. A retried transaction marks it again.
pub(super) fn marked(mark: Mark, fresh: bool) {
    // Fails outside a consumer's call, where nothing is counted.
    let _ = REPEATS.try_with(|repeats| match fresh {
        true => repeats.borrow_mut().remove(&mark),
        false => repeats.borrow_mut().insert(mark),
    });
}
