//! Options that every outbox reader has: the size of a batch, the lease, the first retry of parked events.

use std::time::Duration;

/// Bounds of one batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) events_max: usize,
    pub(crate) bytes_max: usize,
}

#[derive(Clone, Debug)]
/// The options.
pub struct ReaderOptions {
    pub(in crate::relay) bounds: Bounds,
    pub(in crate::relay) lease: Duration,
    pub(in crate::relay) retry: Duration,
}

impl Default for ReaderOptions {
    fn default() -> Self {
        Self {
            bounds: Bounds { events_max: 4_000, bytes_max: 4 * 1024 * 1024 },
            lease: Duration::from_secs(10),
            retry: Duration::from_secs(1),
        }
    }
}

impl ReaderOptions {
    pub(in crate::relay) fn lease_ms(&self) -> i64 {
        i64::try_from(self.lease.as_millis()).unwrap_or(i64::MAX)
    }

    pub(in crate::relay) fn retry_ms(&self) -> i64 {
        i64::try_from(self.retry.as_millis()).unwrap_or(i64::MAX)
    }
}

/// The setters of a type that has [`ReaderOptions`] in this field.
macro_rules! reader_options {
    ($type:ty, $($field:ident).+) => {
        impl $type {
            /// Most events in a batch, and most bytes of their payloads. Default: 4,000 and 4 MiB. A larger event is
            /// sent alone. A reader that prefetches has two batches in memory.
            pub fn batch_max(mut self, events: usize, bytes: usize) -> Self {
                self.$($field).+.bounds = $crate::relay::reader_options::Bounds {
                    events_max: events.clamp(1, 100_000),
                    bytes_max: bytes.max(1),
                };
                self
            }

            /// How long after a relay's death other relays take over what it had leased. Default: 10 s.
            pub fn lease(mut self, lease: std::time::Duration) -> Self {
                let (least, most) =
                    (std::time::Duration::from_millis(100), std::time::Duration::from_secs(600));
                self.$($field).+.lease = lease.clamp(least, most);
                self
            }

            /// Backoff before the first retry of a key that was parked because the sink failed. Default: 1 s; it
            /// doubles with each retry, up to a minute. A key parked because the sink refused an event waits for an
            /// operator.
            pub fn retry_after(mut self, pause: std::time::Duration) -> Self {
                let (least, most) =
                    (std::time::Duration::from_millis(1), std::time::Duration::from_secs(3_600));
                self.$($field).+.retry = pause.clamp(least, most);
                self
            }
        }
    };
}
pub(in crate::relay) use reader_options;
