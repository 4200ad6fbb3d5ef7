//! Sets of metrics: how they are declared and registered, and the one place that encodes them.

use std::fmt;

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

/// Metrics that are exported together, in the order in which they were declared.
///
/// A program can declare its own and export them beside semel's, in one document:
///
/// ```
/// use semel::observe::{MetricSet, Metrics, render};
///
/// let (guard, mut shop) = (Metrics::new(), MetricSet::default());
/// let orders = shop.counters("shop_orders", "Orders by country", ["country"]);
/// orders.with(["nl"]).inc();
/// let text = render(|registry| {
///     guard.register(registry);
///     shop.register(registry);
/// });
/// assert!(text.contains("shop_orders_total{country=\"nl\"} 1\n"));
/// assert_eq!(text.matches("# EOF").count(), 1);
/// ```
#[derive(Default)]
pub struct MetricSet(Vec<Box<Registration>>);

type Registration = dyn Fn(&mut Registry) + Send + Sync;

impl MetricSet {
    /// A counter. It is exported with the suffix `_total`.
    pub fn counter(&mut self, name: &'static str, help: &'static str) -> Counter {
        self.add(name, help, Counter::default())
    }

    /// A gauge.
    pub fn gauge(&mut self, name: &'static str, help: &'static str) -> Gauge {
        self.add(name, help, Gauge::default())
    }

    /// A histogram with these upper bounds.
    pub fn histogram(
        &mut self,
        name: &'static str,
        help: &'static str,
        bounds: impl IntoIterator<Item = f64>,
    ) -> Histogram {
        self.add(name, help, Histogram::new(bounds))
    }

    /// Counters with these labels.
    pub fn counters<const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
    ) -> Labelled<N> {
        self.family(name, help, labels, Counter::default)
    }

    /// Metrics with these labels, each made by `new`.
    pub fn family<const N: usize, M: Metric + Clone>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
        new: fn() -> M,
    ) -> Labelled<N, M>
    where
        Family<[(&'static str, String); N], M>: Metric,
    {
        Labelled { labels, family: self.add(name, help, Family::new_with_constructor(new)) }
    }

    fn add<M: Metric + Clone>(&mut self, name: &'static str, help: &'static str, metric: M) -> M {
        let registered = metric.clone();
        self.push(move |registry| registry.register(name, help, registered.clone()));
        metric
    }

    /// Does this at each registration.
    pub(super) fn push(&mut self, register: impl Fn(&mut Registry) + Send + Sync + 'static) {
        self.0.push(Box::new(register));
    }

    /// Registers all of them. What is counted later counts as well.
    pub fn register(&self, registry: &mut Registry) {
        self.0.iter().for_each(|register| register(registry));
    }
}

impl fmt::Debug for MetricSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricSet").finish_non_exhaustive()
    }
}

/// Metrics of one name that differ in their labels. Cheap to clone; clones share their values.
#[derive(Clone, Debug)]
pub struct Labelled<const N: usize, M = Counter> {
    labels: [&'static str; N],
    family: Family<[(&'static str, String); N], M>,
}

impl<const N: usize, M: Clone> Labelled<N, M> {
    /// The metric with these values of the labels. It is exported from now on.
    pub fn with(&self, values: [&str; N]) -> M {
        let labels = std::array::from_fn(|n| (self.labels[n], values[n].to_owned()));
        self.family.get_or_create_owned(&labels)
    }
}

/// Counts one in a gauge until it is dropped.
#[derive(Debug)]
pub struct GaugeGuard(Gauge);

impl GaugeGuard {
    /// Counts one from now on.
    pub fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Everything that `register` registers, in the OpenMetrics text format that Prometheus reads.
pub fn render(register: impl FnOnce(&mut Registry)) -> String {
    let mut registry = Registry::default();
    register(&mut registry);
    let mut out = String::new();
    // Writing to a String does not fail.
    let _ = text::encode(&mut out, &registry);
    out
}
