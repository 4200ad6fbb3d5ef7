//! The gateway's own metrics, beside the guard's.

use std::sync::Arc;

use semel::observe::{Counter, Gauge, GaugeGuard, Labelled, MetricSet, Registry, names};

use super::smuggling::Refusal;

const REQUESTS: &str = "semel_gateway_requests";
const CONNECTIONS: &str = "semel_gateway_connections";
const WIRE_REFUSED: &str = "semel_gateway_wire_refused";
const TIMED_OUT: &str = "semel_gateway_connections_timed_out";
const UPSTREAM_FAILED: &str = "semel_gateway_upstream_failed";
const AUTHORIZE: &str = "semel_gateway_authorize";
const LIMITED: &str = "semel_gateway_limited";
const SHADOW: &str = "semel_gateway_shadow";

/// Label: the kind of event that is counted.
const KIND: &str = "kind";
/// Label: what the gateway would have done.
const VERDICT: &str = "verdict";

/// The gateway's counters. Cheap to clone.
#[derive(Clone)]
pub(super) struct Counted(Arc<Families>);

struct Families {
    set: MetricSet,
    requests: Labelled<1>,
    /// The counters used by every request, looked up once.
    answered: [(&'static str, Counter); 3],
    connections: Gauge,
    wire_refused: Labelled<1>,
    timed_out: Labelled<1>,
    upstream_failed: Labelled<1>,
    authorize: Labelled<1>,
    limited: Labelled<1>,
    shadow: Labelled<2>,
}

impl Counted {
    pub(super) fn new() -> Self {
        let mut set = MetricSet::default();
        let requests = set.counters(REQUESTS, "Requests by how they were answered", [KIND]);
        let wire_refused = "Connections refused for malformed or ambiguous input";
        let shadow = "Requests by what the gateway would have done in shadow mode";
        let counted = Self(Arc::new(Families {
            answered: ["upstream", "replay", "problem"].map(|kind| (kind, requests.with([kind]))),
            requests,
            // They are exported in this order.
            connections: set.gauge(CONNECTIONS, "Open client connections"),
            wire_refused: set.counters(WIRE_REFUSED, wire_refused, [KIND]),
            timed_out: set.counters(TIMED_OUT, "Connections closed by an idle timeout", [KIND]),
            upstream_failed: set.counters(
                UPSTREAM_FAILED,
                "Requests without an answer from upstream",
                [KIND],
            ),
            authorize: set.counters(AUTHORIZE, "Authorization requests to upstream", [KIND]),
            limited: set.counters(LIMITED, "Requests refused by a limit", [KIND]),
            shadow: set.counters(SHADOW, shadow, [names::LABEL_OPERATION, VERDICT]),
            set,
        }));
        counted.begin_at_zero();
        counted
    }

    /// A counter that appears with its first count does not rise for Prometheus, and no alert sees that count.
    fn begin_at_zero(&self) {
        let Families { timed_out, upstream_failed, authorize, .. } = &*self.0;
        for (counters, kinds) in [
            (timed_out, ["idle", "stuck"].as_slice()),
            (upstream_failed, &["not_sent", "unknown"]),
            (authorize, &["allowed", "refused", "failed"]),
        ] {
            kinds.iter().for_each(|kind| drop(counters.with([*kind])));
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        self.0.set.register(registry);
    }

    /// How a request was answered: `upstream`, `replay`, `problem`.
    pub(super) fn request(&self, kind: &'static str) {
        match self.0.answered.iter().find(|(known, _)| *known == kind) {
            Some((_, counter)) => counter.inc(),
            None => self.0.requests.with([kind]).inc(),
        };
    }

    pub(super) fn wire_refused(&self, refusal: Refusal) {
        tracing::debug!(why = refusal.as_str(), "refused a connection for malformed or ambiguous input");
        self.0.wire_refused.with([refusal.as_str()]).inc();
    }

    /// `idle` or `stuck`.
    pub(super) fn timed_out(&self, kind: &'static str) {
        self.0.timed_out.with([kind]).inc();
    }

    /// `not_sent` or `unknown`.
    pub(super) fn upstream_failed(&self, kind: &'static str) {
        self.0.upstream_failed.with([kind]).inc();
    }

    /// `allowed`, `refused` or `failed`.
    pub(super) fn authorize(&self, kind: &'static str) {
        self.0.authorize.with([kind]).inc();
    }

    pub(super) fn limited(&self, kind: &'static str) {
        self.0.limited.with([kind]).inc();
    }

    pub(super) fn shadow(&self, operation: &str, verdict: &'static str) {
        self.0.shadow.with([operation, verdict]).inc();
    }

    /// Counts one connection until it is dropped.
    pub(super) fn connection(&self) -> GaugeGuard {
        GaugeGuard::new(&self.0.connections)
    }
}

#[cfg(test)]
mod tests {
    use testkit::openmetrics::listing;

    use super::*;

    #[test]
    fn contract_names_types_labels_and_help() {
        let counted = Counted::new();
        counted.request("status");
        counted.wire_refused(Refusal::Malformed);
        counted.timed_out("idle");
        counted.upstream_failed("unknown");
        counted.authorize("allowed");
        counted.limited("attempts");
        counted.shadow("pay", "run");
        let _connected = counted.connection();
        let served = semel::observe::render(|registry| {
            semel::observe::Metrics::new().register(registry);
            counted.register(registry);
        });
        crate::contracts::pinned("metrics.gateway", &listing(&served));
    }

    #[test]
    fn counters_that_alerts_watch_begin_at_zero() {
        let counted = Counted::new();
        let served = semel::observe::render(|registry| counted.register(registry));
        for line in [
            "semel_gateway_upstream_failed_total{kind=\"unknown\"} 0",
            "semel_gateway_connections_timed_out_total{kind=\"stuck\"} 0",
            "semel_gateway_authorize_total{kind=\"failed\"} 0",
        ] {
            assert!(served.contains(line), "{line} is not in\n{served}");
        }
    }
}
