//! Metrics of a cache in front of a store.

use super::label_values::label_values;
use super::{Counter, MetricSet, names};

label_values! {
    /// The result of a cache lookup, as the `result` of `semel_cache_total`.
    CacheLook {
        /// Replayed from the cache.
        Hit = "hit",
        /// Nothing there, or withdrawn.
        Miss = "miss",
        /// There, but too old to be trusted.
        Old = "old",
        /// Another request under the same key: the authority decides.
        OtherRequest = "other_request",
        /// What is there is not what was stored.
        Wrong = "wrong",
        /// The cache failed or did not answer in time.
        Error = "error",
        /// Not asked, because it failed recently.
        Skipped = "skipped",
        /// Not asked, because the operation requires the authority's answer.
        Verified = "verified",
    }
}

label_values! {
    /// What happened to an outcome on its way into the cache, as the `result` of `semel_cache_fill_total`.
    CacheFill {
        /// It is there.
        Stored = "stored",
        /// Something newer is there.
        Overtaken = "overtaken",
        /// It waited too long, or too many were waiting.
        Dropped = "dropped",
        /// The cache or the authority failed.
        Error = "error",
    }
}

/// The counters of a cache. Cheap to clone.
#[derive(Clone)]
pub(crate) struct CacheCounters {
    looks: [Counter; CacheLook::ALL.len()],
    fills: [Counter; CacheFill::ALL.len()],
}

impl CacheCounters {
    pub(super) fn new(set: &mut MetricSet) -> Self {
        let by_result = [names::LABEL_RESULT];
        let looks = set.counters(names::CACHE, "Lookups in the cache in front of the store", by_result);
        let fills = set.counters(names::CACHE_FILL, "Outcomes on their way into the cache", by_result);
        Self {
            looks: CacheLook::ALL.map(|look| looks.with([look.as_str()])),
            fills: CacheFill::ALL.map(|fill| fills.with([fill.as_str()])),
        }
    }

    pub(crate) fn look(&self, look: CacheLook) {
        self.looks[look as usize].inc();
    }

    pub(crate) fn fill(&self, fill: CacheFill) {
        self.fills[fill as usize].inc();
    }
}
