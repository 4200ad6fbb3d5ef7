//! Kafka.

mod at_least_once;
mod exactly_once;
mod laws;
mod promise;
mod reader;

/// What Kafka's own consumer sees of the committed, at least so many.
fn judge(bootstrap: &str, topic: &str, at_least: usize) -> Vec<String> {
    let ask = || testkit::services::kafka::console_consumer(bootstrap, topic, true, at_least * 2 + 10);
    testkit::services::kafka::asked_until(ask, |lines| lines.len() >= at_least).unwrap()
}
