//! What the metrics of relay and consumer share: gauges that are read at scrape time, and the bounds of histograms.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

use super::MetricSet;

/// Events or messages in a batch.
pub(crate) const BATCH_BOUNDS: [f64; 9] = [1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0];
/// Seconds that a call takes.
pub(crate) const CALL_BOUNDS: [f64; 14] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0];
/// Attempts at a message.
pub(crate) const ATTEMPT_BOUNDS: [f64; 7] = [1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0];

/// A gauge: name, help and value. `None` is not exported: an invented zero would mislead.
pub(crate) type Reading = (&'static str, &'static str, Option<f64>);

/// State that gauges are read from.
pub(crate) trait Readings: fmt::Debug + Send + 'static {
    fn readings(&self) -> Vec<Reading>;
}

/// Such state, shared between its owner and the sets that export it.
#[derive(Debug, Default)]
pub(crate) struct Shared<S>(Mutex<S>);

impl<S> Shared<S> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, S> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Readings> Collector for Shared<S> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let readings = self.lock().readings();
        for (name, help, value) in readings {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

impl MetricSet {
    /// Gauges that are read from this state at scrape time.
    pub(crate) fn readings<S: Readings>(&mut self, state: &Arc<Shared<S>>) {
        let state = Arc::clone(state);
        self.push(move |registry| registry.register_collector(Box::new(Arc::clone(&state))));
    }
}
