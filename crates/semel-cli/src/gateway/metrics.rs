//! The gateway's own metrics, beside the guard's.

use std::sync::Arc;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::smuggling::Refusal;

const REQUESTS: &str = "semel_gateway_requests";
const CONNECTIONS: &str = "semel_gateway_connections";
const WIRE_REFUSED: &str = "semel_gateway_wire_refused";
const TIMED_OUT: &str = "semel_gateway_connections_timed_out";
const UPSTREAM_FAILED: &str = "semel_gateway_upstream_failed";
const AUTHORIZE: &str = "semel_gateway_authorize";
const LIMITED: &str = "semel_gateway_limited";
const SHADOW: &str = "semel_gateway_shadow";

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct By {
    kind: &'static str,
}

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct ByVerdict {
    operation: String,
    verdict: &'static str,
}

/// The gateway's counters. Cheap to clone.
#[derive(Clone)]
pub(super) struct Counted(Arc<Families>);

struct Families {
    registry: Registry,
    requests: Family<By, Counter>,
    /// The counters used by every request, looked up once.
    answered: [(&'static str, Counter); 3],
    connections: Gauge,
    wire_refused: Family<By, Counter>,
    timed_out: Family<By, Counter>,
    upstream_failed: Family<By, Counter>,
    authorize: Family<By, Counter>,
    limited: Family<By, Counter>,
    shadow: Family<ByVerdict, Counter>,
}

impl Counted {
    pub(super) fn new() -> Self {
        let mut registry = Registry::default();
        let by = Family::<By, Counter>::default;
        let (requests, wire_refused, timed_out, upstream_failed) = (by(), by(), by(), by());
        let (authorize, limited, shadow, connections) = (by(), by(), Family::default(), Gauge::default());
        registry.register(REQUESTS, "Requests by how they were answered", requests.clone());
        registry.register(CONNECTIONS, "Open client connections", connections.clone());
        registry.register(
            WIRE_REFUSED,
            "Connections refused for malformed or ambiguous input",
            wire_refused.clone(),
        );
        registry.register(TIMED_OUT, "Connections closed by an idle timeout", timed_out.clone());
        registry.register(
            UPSTREAM_FAILED,
            "Requests without an answer from upstream",
            upstream_failed.clone(),
        );
        registry.register(AUTHORIZE, "Authorization requests to upstream", authorize.clone());
        registry.register(LIMITED, "Requests refused by a limit", limited.clone());
        registry.register(
            SHADOW,
            "Requests by what the gateway would have done in shadow mode",
            Family::clone(&shadow),
        );
        let answered = ["upstream", "replay", "problem"]
            .map(|kind| (kind, requests.get_or_create(&By { kind }).clone()));
        Self(Arc::new(Families {
            registry,
            requests,
            answered,
            connections,
            wire_refused,
            timed_out,
            upstream_failed,
            authorize,
            limited,
            shadow,
        }))
    }

    /// How a request was answered: `upstream`, `replay`, `problem`.
    pub(super) fn request(&self, kind: &'static str) {
        match self.0.answered.iter().find(|(known, _)| *known == kind) {
            Some((_, counter)) => counter.inc(),
            None => self.0.requests.get_or_create(&By { kind }).inc(),
        };
    }

    pub(super) fn wire_refused(&self, refusal: Refusal) {
        tracing::debug!(why = refusal.as_str(), "refused a connection for malformed or ambiguous input");
        self.0.wire_refused.get_or_create(&By { kind: refusal.as_str() }).inc();
    }

    /// `idle` or `stuck`.
    pub(super) fn timed_out(&self, kind: &'static str) {
        self.0.timed_out.get_or_create(&By { kind }).inc();
    }

    /// `not_sent` or `unknown`.
    pub(super) fn upstream_failed(&self, kind: &'static str) {
        self.0.upstream_failed.get_or_create(&By { kind }).inc();
    }

    /// `allowed`, `refused` or `failed`.
    pub(super) fn authorize(&self, kind: &'static str) {
        self.0.authorize.get_or_create(&By { kind }).inc();
    }

    pub(super) fn limited(&self, kind: &'static str) {
        self.0.limited.get_or_create(&By { kind }).inc();
    }

    pub(super) fn shadow(&self, operation: &str, verdict: &'static str) {
        self.0.shadow.get_or_create(&ByVerdict { operation: operation.to_owned(), verdict }).inc();
    }

    /// Counts one connection until it is dropped.
    pub(super) fn connection(&self) -> Connected {
        self.0.connections.inc();
        Connected(self.0.connections.clone())
    }

    /// Appends these metrics to the guard's, as one document.
    pub(super) fn render_after(&self, guard: &str) -> String {
        let mut out = guard.strip_suffix("# EOF\n").unwrap_or(guard).to_owned();
        // Writing to a String does not fail.
        let _ = text::encode(&mut out, &self.0.registry);
        out
    }
}

/// See [`Counted::connection`].
pub(super) struct Connected(Gauge);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use testkit::openmetrics::listing;

    use super::*;

    #[test]
    fn names_types_labels_and_help_are_as_listed() {
        let counted = Counted::new();
        counted.request("status");
        counted.wire_refused(Refusal::Malformed);
        counted.timed_out("idle");
        counted.upstream_failed("unknown");
        counted.authorize("allowed");
        counted.limited("attempts");
        counted.shadow("pay", "run");
        let _connected = counted.connection();
        let guard = semel::observe::Metrics::new();
        assert_eq!(listing(&counted.render_after(&guard.render())), include_str!("metrics.txt"));
    }
}
