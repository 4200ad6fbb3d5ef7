//! Metrics of received webhooks.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;

use super::{ByRail, Families, Metrics, names};

/// The result of a webhook, as the `result` of `semel_webhook_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WebhookResult {
    /// Handled now.
    Accepted,
    /// Handled before.
    Replayed,
    /// Not relevant to the handler.
    Ignored,
    /// Well formed, but not signed with any of the secrets.
    Forged,
    /// Correctly signed, but too old or too far ahead.
    Stale,
    /// Not signed the way the provider signs.
    Malformed,
    /// For an unknown tenant.
    UnknownTenant,
    /// Correctly signed, but without an event id: a matter of configuration.
    MissingId,
    /// A body larger than the limit.
    TooLarge,
    /// A body that did not arrive whole in time.
    Broken,
    /// Refused because too many were in flight.
    Busy,
    /// The handler failed, panicked or took too long.
    Failed,
}

impl WebhookResult {
    const ALL: [Self; 12] = [
        Self::Accepted,
        Self::Replayed,
        Self::Ignored,
        Self::Forged,
        Self::Stale,
        Self::Malformed,
        Self::UnknownTenant,
        Self::MissingId,
        Self::TooLarge,
        Self::Broken,
        Self::Busy,
        Self::Failed,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Replayed => "replayed",
            Self::Ignored => "ignored",
            Self::Forged => "forged",
            Self::Stale => "stale",
            Self::Malformed => "malformed",
            Self::UnknownTenant => "unknown_tenant",
            Self::MissingId => "unnamed",
            Self::TooLarge => "too_large",
            Self::Broken => "broken",
            Self::Busy => "busy",
            Self::Failed => "failed",
        }
    }
}

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
pub(super) struct ByProvider {
    provider: String,
    result: &'static str,
}

/// The counters of one provider. Cheap to clone.
#[derive(Clone)]
pub(crate) struct WebhookCounters {
    results: [Counter; 12],
    suppressed: Counter,
}

impl WebhookCounters {
    fn new(families: &Families, provider: &str) -> Self {
        let result = |result| ByProvider { provider: provider.to_owned(), result };
        Self {
            results: WebhookResult::ALL
                .map(|which| families.webhook.get_or_create(&result(which.as_str())).clone()),
            suppressed: families.suppressed.get_or_create(&ByRail { rail: names::RAIL_WEBHOOK }).clone(),
        }
    }

    pub(crate) fn count(&self, result: WebhookResult) {
        self.results[result as usize].inc();
        if result == WebhookResult::Replayed {
            self.suppressed.inc();
        }
    }
}

impl Metrics {
    pub(crate) fn webhook(&self, provider: &str) -> WebhookCounters {
        WebhookCounters::new(&self.0, provider)
    }
}
