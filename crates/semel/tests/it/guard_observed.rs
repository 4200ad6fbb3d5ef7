//! What the guard tells operators: spans and logs under their names, and never a raw key.

use semel::observe::names;
use semel::store::faulty::{Fault, Faulty, StoreCall};
use semel::{Failure, Guard};

use crate::captured_log::CapturedLog;
use crate::guard_world::{acme, key, store};

/// A run, a replay, a mismatch and an unknown outcome, under keys that are secrets.
async fn scenario() -> (semel::observe::Metrics, semel::Key) {
    let faulty =
        Faulty::new(store(), |call| if call == StoreCall::Renew { Fault::Refused } else { Fault::None });
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
    let log = CapturedLog::default();
    let _default = tracing::subscriber::set_default(log.clone());
    // Other tests use the same spans without a subscriber, and the first one decides whether they are recorded:
    // so everything is used once, then asked for again.
    scenario().await;
    tracing::callsite::rebuild_interest_cache();
    log.take();
    let (metrics, secret) = scenario().await;

    let text = log.take();
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
