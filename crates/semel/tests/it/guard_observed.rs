//! What the guard tells operators: spans and logs under their names, and never a raw key.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};

use semel::observe::names;
use semel::store::faulty::{Call, Fault, Faulty};
use semel::{Failure, Guard};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::guard_world::{acme, key, store};

/// Writes down everything it is told.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<String>>);

impl Heard {
    fn note(&self, what: &str, record: impl FnOnce(&mut dyn Visit)) {
        struct Fields<'a>(&'a mut String);
        impl Visit for Fields<'_> {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                let _ = write!(self.0, " {}={value:?}", field.name());
            }
        }
        let mut heard = self.0.lock().unwrap();
        heard.push_str(what);
        record(&mut Fields(&mut heard));
        heard.push('\n');
    }
}

impl Subscriber for Heard {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("semel")
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.note(span.metadata().name(), |visit| span.record(visit));
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, values: &Record<'_>) {
        self.note("recorded", |visit| values.record(visit));
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        self.note("event", |visit| event.record(visit));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A run, a replay, a mismatch and an end nobody knows, under keys that are secrets.
async fn scenario() -> (semel::observe::Metrics, semel::Key) {
    let faulty = Faulty::new(store(), |call| if call == Call::Renew { Fault::Refused } else { Fault::None });
    let guard = Guard::new(faulty);
    let pay = guard.operation("pay").unwrap();
    let secret = key("very-secret-order");
    for _ in 0..2 {
        let work = |_| async {
            tokio::time::sleep(std::time::Duration::from_secs(15)).await;
            Ok::<_, Failure>(1)
        };
        pay.once(&acme(), &secret, &(), work).await.unwrap();
    }
    pay.once::<i32, _, _, _>(&acme(), &secret, &"another", |_| async { panic!("ran") }).await.unwrap_err();
    let broken = |_| async { Err::<i32, _>(Failure::unknown("reset")) };
    pay.once(&acme(), &key("very-secret-other"), &(), broken).await.unwrap_err();
    (guard.metrics().clone(), secret)
}

#[tokio::test(start_paused = true)]
async fn spans_and_logs_say_what_happens_and_never_show_the_key() {
    let heard = Heard::default();
    let _default = tracing::subscriber::set_default(heard.clone());
    // Other tests use the same spans without a subscriber, and whoever is first decides whether they are heard:
    // so everything is used once, then asked for again.
    scenario().await;
    tracing::callsite::rebuild_interest_cache();
    heard.0.lock().unwrap().clear();
    let (metrics, secret) = scenario().await;

    let text = heard.0.lock().unwrap().clone();
    let hash = format!("idempotency.key_hash=\"{}\"", secret.short_hash());
    for wanted in [
        names::SPAN_CLAIM,
        names::SPAN_RUN,
        names::SPAN_FINISH,
        "idempotency.operation=\"pay\"",
        "idempotency.status=\"run\"",
        "idempotency.status=\"replay\"",
        "idempotency.status=\"mismatch\"",
        "idempotency.state=\"completed\"",
        "idempotency.replayed=true",
        "the lease could not be renewed",
        &hash,
    ] {
        assert!(text.contains(wanted), "{wanted} is not in\n{text}");
    }
    assert!(!text.contains("secret"), "{text}");
    assert!(!metrics.render().contains("secret"));
}
