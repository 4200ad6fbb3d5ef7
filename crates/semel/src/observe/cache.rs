//! Metrics of a cache in front of a store.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::names;

/// The result of a cache lookup, as the `result` of `semel_cache_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CacheLook {
    /// Replayed from the cache.
    Hit,
    /// Nothing there, or withdrawn.
    Miss,
    /// There, but too old to be trusted.
    Old,
    /// Another request under the same key: the authority decides.
    OtherRequest,
    /// What is there is not what was stored.
    Wrong,
    /// The cache failed or did not answer in time.
    Error,
    /// Not asked, because it failed recently.
    Skipped,
    /// Not asked, because the operation requires the authority's answer.
    Verified,
}

impl CacheLook {
    const ALL: [Self; 8] = [
        Self::Hit,
        Self::Miss,
        Self::Old,
        Self::OtherRequest,
        Self::Wrong,
        Self::Error,
        Self::Skipped,
        Self::Verified,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Old => "old",
            Self::OtherRequest => "other_request",
            Self::Wrong => "wrong",
            Self::Error => "error",
            Self::Skipped => "skipped",
            Self::Verified => "verified",
        }
    }
}

/// What happened to an outcome on its way into the cache, as the `result` of `semel_cache_fill_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CacheFill {
    /// It is there.
    Stored,
    /// Something newer is there.
    Overtaken,
    /// It waited too long, or too many were waiting.
    Dropped,
    /// The cache or the authority failed.
    Error,
}

impl CacheFill {
    const ALL: [Self; 4] = [Self::Stored, Self::Overtaken, Self::Dropped, Self::Error];

    fn as_str(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Overtaken => "overtaken",
            Self::Dropped => "dropped",
            Self::Error => "error",
        }
    }
}

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct ByResult {
    result: &'static str,
}

/// The counters of a cache. Cheap to clone.
#[derive(Clone)]
pub(crate) struct CacheCounters {
    looks: [Counter; 8],
    fills: [Counter; 4],
}

impl CacheCounters {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let (looks, fills) = (Family::<ByResult, Counter>::default(), Family::<ByResult, Counter>::default());
        registry.register(names::CACHE, "Lookups in the cache in front of the store", looks.clone());
        registry.register(names::CACHE_FILL, "Outcomes on their way into the cache", fills.clone());
        let of =
            |family: &Family<ByResult, Counter>, result| family.get_or_create(&ByResult { result }).clone();
        Self {
            looks: CacheLook::ALL.map(|look| of(&looks, look.as_str())),
            fills: CacheFill::ALL.map(|fill| of(&fills, fill.as_str())),
        }
    }

    pub(crate) fn look(&self, look: CacheLook) {
        self.looks[look as usize].inc();
    }

    pub(crate) fn fill(&self, fill: CacheFill) {
        self.fills[fill as usize].inc();
    }
}
