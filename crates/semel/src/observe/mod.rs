//! Every metric, span and attribute name, and the one place where metrics are declared and encoded.
//!
//! | module | what it decides |
//! |---|---|
//! | `names` | the names of metrics, labels and spans |
//! | `set` | how a set of metrics is declared, registered and encoded |
//! | `label_values` | enums that are the values of a label |
//! | `guard`, `cache`, `webhook` | the metrics of guards, of a cache in front of a store, of received webhooks |
//! | `readings`, `health` | for relay and consumer: gauges read at scrape time, and whether it makes progress |
//!
//! What each set exports (names, types, labels and help) is pinned in `contracts/metrics.*.txt` of this package.

#[cfg_attr(not(feature = "redis"), allow(dead_code))]
mod cache;
mod guard;
pub(crate) mod health;
mod label_values;
pub mod names;
pub(crate) mod readings;
mod set;
#[cfg_attr(not(feature = "webhook-receiver"), allow(dead_code))]
mod webhook;

pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::metrics::histogram::Histogram;
pub use prometheus_client::registry::Registry;

#[cfg(feature = "redis")]
pub(crate) use cache::{CacheCounters, CacheFill, CacheLook};
pub use guard::Metrics;
pub(crate) use guard::{ClaimStatus, FinishStatus, OperationMetrics, Phase, RecoveryStatus};
pub use set::{GaugeGuard, Labelled, MetricSet, render};
#[cfg(feature = "webhook-receiver")]
pub(crate) use webhook::{WebhookCounters, WebhookResult};
