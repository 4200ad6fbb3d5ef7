//! Context of one law on one source.

use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

use super::harness::{Abilities, Lease, Sent, SourceHarness};
use crate::sink::headers;
use crate::source::{Delivery, Receipt, Settle, Source, SourceError};

/// How long one call waits for messages.
pub(super) const WAIT: Duration = Duration::from_millis(200);

/// How often to check that something does not happen.
const CHECKS: usize = 3;

/// One law, one queue.
pub(super) struct Bench<'a, H: SourceHarness> {
    law: &'static str,
    harness: &'a H,
    pub(super) queue: String,
    pub(super) can: Abilities,
}

impl<'a, H: SourceHarness> Bench<'a, H> {
    pub(super) async fn of(law: &'static str, harness: &'a H, lease: Lease) -> Self {
        Self { law, harness, queue: harness.queue(lease).await, can: harness.abilities() }
    }

    /// The law is broken.
    pub(super) fn fail(&self, what: impl Display) -> ! {
        panic!("the law {} is broken: {what}", self.law)
    }

    pub(super) fn check(&self, holds: bool, what: impl Display) {
        if !holds {
            self.fail(what);
        }
    }

    /// The broker cannot do what the law requires: prints that instead of hiding it.
    pub(super) fn cannot(&self, what: &str) {
        eprintln!("the law {} requires less: {what}", self.law);
    }

    pub(super) async fn publish(&self, messages: &[Sent]) {
        self.harness.publish(&self.queue, messages).await;
    }

    /// Publishes so many messages: `m-0`, `m-1` and so on.
    pub(super) async fn publish_some(&self, messages: usize) {
        let messages: Vec<Sent> = (0..messages).map(|n| Sent::new(format!("m-{n}"))).collect();
        self.publish(&messages).await;
    }

    pub(super) async fn source(&self) -> H::Source {
        self.harness.source(&self.queue).await
    }

    /// When an expected event counts as missing.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.harness.patience()
    }

    /// One call, which has to end in time.
    pub(super) async fn within<T>(&self, call: impl Future<Output = T>) -> T {
        let timeout = self.harness.patience();
        match tokio::time::timeout(timeout, call).await {
            Ok(answer) => answer,
            Err(_) => self.fail(format_args!("a call did not end within {timeout:?}")),
        }
    }

    /// One call of `receive`. Empty if the broker is not ready yet: the caller retries.
    pub(super) async fn receive_once(&self, source: &mut H::Source, most: usize) -> Vec<Delivery> {
        match self.within(source.receive(most, WAIT)).await {
            Ok(received) => {
                self.check(
                    received.len() <= most,
                    format_args!("received {} messages, at most {most} allowed", received.len()),
                );
                received
            }
            Err(error) if error.may_retry() => Vec::new(),
            Err(error) => self.fail(format_args!("receive failed: {error}")),
        }
    }

    /// Receives exactly so many messages, in as many calls as it takes. Extends their leases meanwhile.
    pub(super) async fn receive(&self, source: &mut H::Source, count: usize) -> Vec<Delivery> {
        let (until, mut renewed) = (self.deadline(), Instant::now());
        let mut received = Vec::new();
        while received.len() < count {
            if renewed.elapsed() >= source.renew_after() {
                renewed = Instant::now();
                self.keep(source, &receipts(&received)).await;
            }
            self.check(
                Instant::now() < until,
                format_args!("received {} of {count}: {:?}", received.len(), ids(&received)),
            );
            received.extend(self.receive_once(source, count - received.len()).await);
        }
        received
    }

    pub(super) async fn settle(&self, source: &mut H::Source, settled: &[(Receipt, Settle)]) {
        let until = self.deadline();
        while let Err(error) = self.within(source.settle(settled)).await {
            self.retry_or_fail(&error, until, "settle failed").await;
        }
    }

    pub(super) async fn keep(&self, source: &mut H::Source, in_flight: &[Receipt]) {
        let until = self.deadline();
        while let Err(error) = self.within(source.keep(in_flight)).await {
            self.retry_or_fail(&error, until, "keep failed").await;
        }
    }

    pub(super) async fn leave(&self, mut source: H::Source) {
        let until = self.deadline();
        while let Err(error) = self.within(source.leave()).await {
            self.retry_or_fail(&error, until, "leave failed").await;
        }
    }

    async fn retry_or_fail(&self, error: &SourceError, until: Instant, what: &str) {
        self.check(error.may_retry() && Instant::now() < until, format_args!("{what}: {error}"));
        tokio::time::sleep(WAIT).await;
    }

    /// The broker has this many unacked messages, if it reports that. It may need a moment to count.
    pub(super) async fn left_is(&self, count: usize) {
        let until = self.deadline();
        while let Some(left) = self.harness.left(&self.queue).await {
            if left == count {
                return;
            }
            let late = Instant::now() >= until;
            self.check(!late, format_args!("{left} messages are unacked, not {count}"));
            tokio::time::sleep(WAIT / 4).await;
        }
    }

    /// The number of unacked messages does not change.
    pub(super) async fn left_stays(&self, count: usize) {
        for _ in 0..CHECKS {
            let left = self.harness.left(&self.queue).await;
            self.check(
                left.is_none_or(|left| left == count),
                format_args!("{left:?} messages are unacked, not {count}"),
            );
            tokio::time::sleep(WAIT / 4).await;
        }
    }

    /// Publishes a last message, and returns everything else that arrives.
    pub(super) async fn besides_the_last(&self, source: &mut H::Source) -> Vec<Delivery> {
        let last = Sent::new(format!("last-{}", uuid::Uuid::now_v7()));
        self.publish(std::slice::from_ref(&last)).await;
        let until = self.deadline();
        let (mut received, mut seen) = (Vec::new(), false);
        while !seen {
            self.check(
                Instant::now() < until,
                format_args!("the last message did not arrive, but {:?}", ids(&received)),
            );
            for delivery in self.receive_once(source, 100).await {
                if id(&delivery) == last.id() {
                    seen = true;
                    self.settle(source, &[(delivery.receipt, Settle::Ack)]).await;
                } else {
                    received.push(delivery);
                }
            }
        }
        // Without an order the last one may have overtaken others.
        for _ in 0..if self.can.order { 1 } else { CHECKS } {
            received.extend(self.receive_once(source, 100).await);
        }
        received
    }

    /// Everything is acked: a new consumer gets nothing, and the broker has none left.
    pub(super) async fn all_is_done(&self) {
        let mut next = self.source().await;
        let received = self.besides_the_last(&mut next).await;
        self.check(received.is_empty(), format_args!("acked, and redelivered: {:?}", ids(&received)));
        self.leave(next).await;
        self.left_is(0).await;
    }
}

/// The id of a message.
pub(super) fn id(delivery: &Delivery) -> &str {
    delivery.header(headers::ID).unwrap_or_default()
}

pub(super) fn ids(received: &[Delivery]) -> Vec<&str> {
    received.iter().map(id).collect()
}

pub(super) fn sorted(received: &[Delivery]) -> Vec<&str> {
    let mut ids = ids(received);
    ids.sort_unstable();
    ids
}

pub(super) fn all(received: &[Delivery], settle: Settle) -> Vec<(Receipt, Settle)> {
    received.iter().map(|delivery| (delivery.receipt, settle)).collect()
}

pub(super) fn receipts(received: &[Delivery]) -> Vec<Receipt> {
    received.iter().map(|delivery| delivery.receipt).collect()
}
