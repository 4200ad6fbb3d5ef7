//! Metrics of received webhooks.

use super::label_values::label_values;
use super::{Counter, Metrics, names};

label_values! {
    /// The result of a webhook, as the `result` of `semel_webhook_total`.
    WebhookResult {
        /// Handled now.
        Accepted = "accepted",
        /// Handled before.
        Replayed = "replayed",
        /// Not relevant to the handler.
        Ignored = "ignored",
        /// Well formed, but not signed with any of the secrets.
        Forged = "forged",
        /// Correctly signed, but too old or too far ahead.
        Stale = "stale",
        /// Not signed the way the provider signs.
        Malformed = "malformed",
        /// For an unknown tenant.
        UnknownTenant = "unknown_tenant",
        /// Correctly signed, but without an event id: a matter of configuration.
        MissingId = "unnamed",
        /// A body larger than the limit.
        TooLarge = "too_large",
        /// A body that did not arrive whole in time.
        Broken = "broken",
        /// Refused because too many were in flight.
        Busy = "busy",
        /// The handler failed, panicked or took too long.
        Failed = "failed",
    }
}

/// The counters of one provider. Cheap to clone.
#[derive(Clone)]
pub(crate) struct WebhookCounters {
    results: [Counter; WebhookResult::ALL.len()],
    suppressed: Counter,
}

impl WebhookCounters {
    pub(crate) fn count(&self, result: WebhookResult) {
        self.results[result as usize].inc();
        if result == WebhookResult::Replayed {
            self.suppressed.inc();
        }
    }
}

impl Metrics {
    pub(crate) fn webhook(&self, provider: &str) -> WebhookCounters {
        WebhookCounters {
            results: WebhookResult::ALL.map(|result| self.0.webhook.with([provider, result.as_str()])),
            suppressed: self.0.suppressed.with([names::RAIL_WEBHOOK]),
        }
    }
}
