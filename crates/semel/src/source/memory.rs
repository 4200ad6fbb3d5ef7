//! A queue in memory that redelivers what is not settled, like a broker. For tests.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Delivery, Receipt, Settle, Source, SourceError};

/// An in-memory queue. Cheap to clone: all clones share one queue.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use semel::source::memory::MemoryQueue;
/// use semel::source::{Settle, Source};
/// use std::time::Duration;
///
/// let queue = MemoryQueue::new("payments");
/// queue.push(Some("account-7"), &[("semel-id", "e-1")], "{}");
/// let mut source = queue.source();
/// let came = source.receive(10, Duration::ZERO).await.unwrap();
/// source.settle(&[(came[0].receipt, Settle::Ack)]).await.unwrap();
/// assert_eq!(queue.len(), 0);
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct MemoryQueue {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    lease: Duration,
    state: Mutex<State>,
    more: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    sources: u64,
    /// In the order in which they were pushed.
    messages: BTreeMap<u64, Kept>,
}

#[derive(Debug)]
struct Kept {
    delivery: Delivery,
    deliveries: u32,
    /// The lease: which source has it, under which receipt, and until when.
    out: Option<(u64, Receipt, Instant)>,
}

impl MemoryQueue {
    /// An empty queue. A message that is not settled or kept within 30 seconds goes to another source.
    pub fn new(name: &str) -> Self {
        Self::with_lease(name, Duration::from_secs(30))
    }

    /// An empty queue with another lease.
    pub fn with_lease(name: &str, lease: Duration) -> Self {
        let (name, state, more) = (name.to_owned(), Mutex::default(), Notify::new());
        Self { inner: Arc::new(Inner { name, lease, state, more }) }
    }

    /// Appends a message.
    pub fn push(&self, key: Option<&str>, headers: &[(&str, &str)], payload: impl Into<bytes::Bytes>) {
        let mut state = self.state();
        let n = state.next;
        state.next += 1;
        let mut delivery = Delivery::new(Receipt(0), &self.inner.name, n.to_string(), payload);
        delivery.key = key.map(str::to_owned);
        delivery.headers = headers.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect();
        state.messages.insert(n, Kept { delivery, deliveries: 0, out: None });
        drop(state);
        self.inner.more.notify_waiters();
    }

    /// Messages that are not acked.
    pub fn len(&self) -> usize {
        self.state().messages.len()
    }

    /// Whether all messages are acked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A new consumer of this queue.
    pub fn source(&self) -> MemorySource {
        let mut state = self.state();
        state.sources += 1;
        MemorySource { queue: self.clone(), me: state.sources, given: 0, numbers: HashMap::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives from a [`MemoryQueue`]. Dropping it without [`leave`](Source::leave) is like a crash: others get its
/// messages when the lease is over.
#[derive(Debug)]
pub struct MemorySource {
    queue: MemoryQueue,
    me: u64,
    given: u64,
    numbers: HashMap<Receipt, u64>,
}

impl MemorySource {
    fn take(&mut self, most: usize) -> Vec<Delivery> {
        let (now, until) = (Instant::now(), Instant::now() + self.queue.inner.lease);
        let mut taken = Vec::new();
        let mut state = self.queue.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        // While another source has a message of a key, the rest of the key waits, as in a broker's FIFO queue.
        let mut busy = std::collections::HashSet::new();
        for (n, kept) in &mut state.messages {
            let key = kept.delivery.key.clone();
            let leased = kept.out.filter(|(_, _, until)| *until > now);
            if let Some((by, ..)) = leased {
                if by != self.me {
                    busy.insert(key);
                }
                continue;
            }
            if key.is_some() && busy.contains(&key) {
                continue;
            }
            if taken.len() == most {
                break;
            }
            self.given += 1;
            let receipt = Receipt((self.me << 40) | self.given);
            kept.deliveries += 1;
            kept.out = Some((self.me, receipt, until));
            self.numbers.insert(receipt, *n);
            let deliveries = Some(kept.deliveries);
            taken.push(Delivery { receipt, deliveries, ..kept.delivery.clone() });
        }
        taken
    }

    /// The message of a receipt, if its lease is still ours.
    fn ours(me: u64, state: &mut State, n: u64, receipt: Receipt) -> Option<&mut Kept> {
        state.messages.get_mut(&n).filter(|kept| {
            kept.out.is_some_and(|(by, under, until)| (by, under) == (me, receipt) && until > Instant::now())
        })
    }
}

impl Source for MemorySource {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        let until = Instant::now() + wait;
        loop {
            let queue = self.queue.clone();
            let more = queue.inner.more.notified();
            let taken = self.take(most);
            let left = until.saturating_duration_since(Instant::now());
            if !taken.is_empty() || left.is_zero() {
                return Ok(taken);
            }
            // A lease may end without a notification.
            let _ = tokio::time::timeout(left.min(Duration::from_millis(20)), more).await;
        }
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        let mut state = self.queue.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (receipt, settle) in settled {
            let Some(n) = self.numbers.remove(receipt) else { continue };
            let Some(kept) = Self::ours(self.me, &mut state, n, *receipt) else { continue };
            match settle {
                Settle::Ack => drop(state.messages.remove(&n)),
                Settle::Nack => kept.out = None,
            }
        }
        drop(state);
        self.queue.inner.more.notify_waiters();
        Ok(())
    }

    async fn keep(&mut self, in_flight: &[Receipt]) -> Result<(), SourceError> {
        let until = Instant::now() + self.queue.inner.lease;
        let mut state = self.queue.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        for receipt in in_flight {
            let Some(n) = self.numbers.get(receipt) else { continue };
            if let Some(kept) = Self::ours(self.me, &mut state, *n, *receipt) {
                kept.out = Some((self.me, *receipt, until));
            }
        }
        Ok(())
    }

    fn renew_after(&self) -> Duration {
        self.queue.inner.lease / 3
    }

    fn lost(&mut self) -> Vec<Receipt> {
        let mut state = self.queue.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        let me = self.me;
        let lost: Vec<Receipt> = self
            .numbers
            .iter()
            .filter(|(receipt, n)| Self::ours(me, &mut state, **n, **receipt).is_none())
            .map(|(receipt, _)| *receipt)
            .collect();
        for receipt in &lost {
            self.numbers.remove(receipt);
        }
        lost
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        let settled: Vec<_> = self.numbers.keys().map(|receipt| (*receipt, Settle::Nack)).collect();
        self.settle(&settled).await
    }
}
