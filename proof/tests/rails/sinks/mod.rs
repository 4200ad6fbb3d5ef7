//! The sinks against real brokers, judged by readers that have nothing to do with them.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features stores,sinks --test rails sinks::`.
mod kafka;
mod nats;
mod planted;
mod rabbitmq;
mod redis_stream;
mod sqs;
mod webhook;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use semel::conformance::sink::ReadMessage;
use semel::outbox::Event;
use semel::sink::{Published, Sink};
use testkit::proxy::{Fault, Proxy};

/// Nothing here takes this long on a machine that works.
const SOON: Duration = Duration::from_secs(60);
/// How long a sink has for what is to be confirmed, also on a busy machine. A lost answer may be waited for as long.
const PATIENCE: Duration = Duration::from_secs(10);

/// A new name: servers keep their data from run to run.
fn unique(prefix: &str) -> String {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("{prefix}-{}-{nanos}-{}", std::process::id(), fastrand::u32(..))
}

/// The `n`th event of that key, which says so.
fn event(topic: &str, key: &str, n: usize) -> Arc<Event> {
    Arc::new(Event::new(topic, "number", n.to_string()).unwrap().key(key).unwrap())
}

fn confirmed(answers: &[Published]) -> bool {
    answers.iter().all(|answer| *answer == Published::Confirmed)
}

/// The texts of what was seen, each the first time.
fn texts(seen: &[ReadMessage]) -> Vec<String> {
    let mut texts = Vec::new();
    for seen in seen {
        let text = String::from_utf8(seen.payload.to_vec()).unwrap();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts
}

/// The broker does the work and its answer is lost: the sink may say neither that it was confirmed nor that it was not
/// published. The sink connects through the proxy and gives up within seconds.
async fn lose_an_answer(sink: &mut impl Sink, proxy: &Proxy, topic: &str) {
    assert!(confirmed(&sink.publish(&[event(topic, "a", 1)]).await));
    let (second, third) = (event(topic, "a", 2), event(topic, "a", 3));
    proxy.set(Fault::DropResponse);
    let answers = sink.publish(&[second.clone(), third.clone()]).await;
    proxy.set(Fault::Pass);
    assert!(
        matches!(&answers[0], Published::Failed(error) if error.is_maybe_published()),
        "the answer was lost: {answers:?}"
    );
    assert!(matches!(&answers[1], Published::Failed(_)), "{answers:?}");
    assert!(confirmed(&sink.publish(&[second, third]).await));
}
