//! Kafka.

mod at_least_once;
mod exactly_once;
mod laws;
mod promise;
mod reader;

/// What Kafka's own consumer sees of the committed, at least so many. It gives up when nothing has come for a few seconds,
/// which on a busy machine may be before its first fetch; then it is asked again.
fn judge(bootstrap: &str, topic: &str, at_least: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for _ in 0..5 {
        lines =
            testkit::services::kafka::console_consumer(bootstrap, topic, true, at_least * 2 + 10).unwrap();
        if lines.len() >= at_least {
            break;
        }
    }
    lines
}
