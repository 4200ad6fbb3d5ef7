//! Quotas: how many bytes a tenant's stored outcomes take, approximately.
//!
//! Counted in this process from the answers that pass through it: it starts at zero after a restart, and several
//! gateways on one store count separately. Enough to stop one tenant from filling the disk; too coarse for billing.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use semel::{Intent, Retention};

use super::body::{BoxError, Payload};

/// Most tenants that are counted. Further ones are not limited, which is logged.
const TENANTS_MAX: usize = 100_000;
/// Bytes of a record beside its answer's body.
const RECORD_BYTES: u64 = 512;
/// Steps per retention: the precision with which expired bytes are subtracted.
const STEPS: u64 = 64;

/// Stored bytes of one tenant, by the time (ms since the start) at which they expire.
#[derive(Default)]
struct Usage {
    expiring: BTreeMap<u64, u64>,
    total: u64,
}

impl Usage {
    fn expire(&mut self, now_ms: u64) {
        while let Some(first) = self.expiring.first_entry().filter(|first| *first.key() <= now_ms) {
            self.total = self.total.saturating_sub(first.remove());
        }
    }

    fn add(&mut self, now_ms: u64, bytes: u64, retention: Retention) {
        let until = match retention {
            Retention::Ms(ms) => {
                let step = (ms / STEPS).max(1);
                now_ms.saturating_add(ms).div_ceil(step).saturating_mul(step)
            }
            Retention::Forever => u64::MAX,
        };
        *self.expiring.entry(until).or_default() += bytes;
        self.total += bytes;
    }
}

struct Inner {
    bytes_max: u64,
    kept_bytes_max: u64,
    retentions: HashMap<String, Retention>,
    start: Instant,
    tenants: Mutex<HashMap<Box<str>, Usage>>,
}

/// The quotas of all tenants; `None` without a limit. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Quotas(Option<Arc<Inner>>);

impl Quotas {
    /// At most `bytes_max` for each tenant; of one answer at most `kept_bytes_max` are kept.
    pub(super) fn new(bytes_max: u64, kept_bytes_max: u64, retentions: HashMap<String, Retention>) -> Self {
        let (start, tenants) = (Instant::now(), Mutex::default());
        Self(Some(Arc::new(Inner { bytes_max, kept_bytes_max, retentions, start, tenants })))
    }

    /// Whether a tenant is below its quota, or when it may be again.
    pub(super) fn check(&self, tenant: &str) -> Result<(), Duration> {
        let Some(inner) = &self.0 else { return Ok(()) };
        let now_ms = inner.now_ms();
        let mut tenants = inner.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(usage) = tenants.get_mut(tenant) else { return Ok(()) };
        usage.expire(now_ms);
        if usage.total < inner.bytes_max {
            return Ok(());
        }
        let soonest = usage.expiring.first_key_value().map_or(now_ms, |(until, _)| *until);
        Err(Duration::from_millis((soonest - now_ms).min(24 * 60 * 60 * 1_000)))
    }

    /// Counts an answer as it passes.
    pub(super) fn counting(&self, intent: &Intent, response: Response<Payload>) -> Response<Payload> {
        let Some(inner) = &self.0 else { return response };
        let retention = inner.retentions.get(intent.operation().as_str()).copied().unwrap_or_default();
        let tenant = intent.scope().tenant_text().into();
        let inner = Arc::clone(inner);
        response.map(|body| Counting { body, bytes: 0, tenant, retention, inner }.boxed_unsync())
    }
}

impl Inner {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn add(&self, tenant: &str, bytes: u64, retention: Retention) {
        let now_ms = self.now_ms();
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if !tenants.contains_key(tenant) && tenants.len() >= TENANTS_MAX {
            tenants.retain(|_, usage| {
                usage.expire(now_ms);
                usage.total > 0
            });
            if tenants.len() >= TENANTS_MAX {
                tracing::warn!(
                    TENANTS_MAX,
                    "too many tenants to count; stored_bytes_max does not limit the newest ones"
                );
                return;
            }
        }
        let usage = tenants.entry(tenant.into()).or_default();
        usage.expire(now_ms);
        usage.add(now_ms, bytes, retention);
    }
}

struct Counting {
    body: Payload,
    bytes: u64,
    tenant: Box<str>,
    retention: Retention,
    inner: Arc<Inner>,
}

impl Body for Counting {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let next = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &next {
            self.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        // An answer larger than that is recorded without its body.
        let kept = if self.bytes > self.inner.kept_bytes_max { 0 } else { self.bytes };
        self.inner.add(&self.tenant, RECORD_BYTES + kept, self.retention);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_and_given_back_when_outcomes_are_forgotten() {
        let mut usage = Usage::default();
        usage.add(0, 100, Retention::Ms(6_400));
        usage.add(50, 100, Retention::Ms(6_400));
        usage.add(0, 7, Retention::Forever);
        assert_eq!((usage.total, usage.expiring.len()), (207, 3));
        usage.expire(6_399);
        assert_eq!(usage.total, 207);
        usage.expire(6_400);
        assert_eq!(usage.total, 107);
        usage.expire(6_500);
        assert_eq!(usage.total, 7);
        usage.expire(u64::MAX - 1);
        assert_eq!(usage.total, 7);
    }

    #[test]
    fn steps_are_bounded() {
        let mut usage = Usage::default();
        for now in 0..100_000 {
            usage.expire(now);
            usage.add(now, 1, Retention::Ms(10_000));
        }
        assert!(usage.expiring.len() as u64 <= STEPS + 2, "{}", usage.expiring.len());
    }
}
