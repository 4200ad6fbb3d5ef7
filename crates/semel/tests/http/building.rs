//! Settings that cannot hold are refused when the layer is built, with what to do instead.

use std::time::Duration;

use http::Method;
use http::header::{AUTHORIZATION, COOKIE, SET_COOKIE};
use semel::guard::{Found, WorkResult};
use semel::http::{BuildError, Builder, IdempotencyLayer, KeyRule, Rule};
use semel::store::memory::MemoryStore;
use semel::{Effect, Guard, KeyFormat};

fn builder() -> Builder<MemoryStore> {
    IdempotencyLayer::builder(Guard::new(MemoryStore::new()))
}

fn refused(builder: Builder<MemoryStore>) -> BuildError {
    builder.build().unwrap_err()
}

#[test]
fn a_layer_needs_to_know_whose_requests_these_are() {
    let error = refused(builder());
    assert!(matches!(error, BuildError::NoScope) && error.to_string().contains("single_tenant"), "{error}");
    assert!(builder().single_tenant().build().is_ok());
    assert!(builder().scope(|_| semel::Scope::tenant("acme")).build().is_ok());
}

#[test]
fn a_token_is_no_scope_because_a_refresh_would_make_a_retry_a_new_intent() {
    for name in [AUTHORIZATION, COOKIE] {
        let error = refused(builder().scope_header(name));
        assert!(matches!(error, BuildError::UnstableScope(_)), "{error}");
    }
    assert!(builder().scope_header(AUTHORIZATION).single_tenant().build().is_ok(), "the last word counts");
}

#[test]
fn rules_that_cannot_hold_are_refused() {
    let tenant = || builder().single_tenant();
    let rule = || Rule::on("POST /a");
    assert!(matches!(refused(tenant().rule(Rule::on("/a"))), BuildError::Route { .. }));
    assert!(matches!(refused(tenant().rule(Rule::on("GET /a"))), BuildError::SafeMethod(_)));
    assert!(matches!(refused(tenant().methods([Method::HEAD])), BuildError::SafeMethod(_)));
    assert!(matches!(refused(tenant().rule(rule()).rule(rule().name("b"))), BuildError::Twice { .. }));
    let same_name = tenant().rule(rule().name("n")).rule(Rule::on("POST /b").name("n"));
    assert!(matches!(refused(same_name), BuildError::Twice { .. }));
    assert!(matches!(refused(tenant().rule(rule().name("schlüssel"))), BuildError::Operation(_)));
    assert!(matches!(refused(tenant().rule(rule().lease(Duration::ZERO))), BuildError::Policy { .. }));
    assert!(matches!(
        refused(tenant().default_rule(Rule::default_rule().lease(Duration::ZERO))),
        BuildError::Policy { .. }
    ));
    assert!(matches!(refused(tenant().rule(rule().replay_header(SET_COOKIE))), BuildError::ReplayHeader(_)));
    assert!(matches!(
        refused(tenant().rule(rule().response_bytes_max(4 << 20))),
        BuildError::ResponseBytesMax { .. }
    ));
    assert!(matches!(refused(tenant().rule(rule().respond_accepted())), BuildError::NoStatus { .. }));
    for bad in ["intents", "/intents/", "/in tents"] {
        assert!(matches!(refused(tenant().status_path(bad)), BuildError::StatusAt(_)), "{bad}");
    }
    for bad in [vec!["short"], vec!["a secret of this service"; 9]] {
        let builder = tenant().status_secrets(bad);
        assert!(matches!(refused(builder), BuildError::StatusSecrets { .. }));
    }
    let too_small = tenant().rule(rule().body_bytes_max(2 << 20)).buffered_bytes_max(1 << 20);
    assert!(matches!(refused(too_small), BuildError::BufferedBytesMax { .. }));
    assert!(
        tenant()
            .rule(rule().respond_accepted().key(KeyRule::Optional))
            .status_path("/intents")
            .build()
            .is_ok()
    );
}

/// What the layer cannot do where the handler claims for itself is refused, not passed over.
#[test]
fn settings_that_do_nothing_for_an_atomic_operation_are_refused() {
    let atomic = || Rule::on("POST /a").name("pay").effect(Effect::Atomic);
    let second = Duration::from_secs(1);
    let lookup = |_| async { Found::Unknown };
    for (setting, rule) in [
        ("respond_async_after", atomic().respond_async_after(second)),
        ("respond_accepted", atomic().respond_accepted()),
        ("lookup", atomic().lookup(lookup, second)),
        ("failures", atomic().failures(|_| WorkResult::Hold)),
    ] {
        for builder in [
            builder().single_tenant().status_path("/intents").rule(rule.clone()),
            builder().single_tenant().status_path("/intents").default_rule(rule),
        ] {
            let error = builder.build().expect_err(setting).to_string();
            assert!(error.contains(&format!("`{setting}`")) && error.contains("Effect::Atomic"), "{error}");
        }
    }
    let honoured = atomic().timeout(second).key_format(KeyFormat::TimeOrdered { skew_ms: 0 });
    assert!(builder().single_tenant().rule(honoured).build().is_ok());
}
