//! The bench on which a law tries a source.

use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

use super::harness::{Abilities, Lease, Sent, SourceHarness};
use crate::sink::headers;
use crate::source::{Delivery, Receipt, Settle, Source, SourceError};

/// How long one call waits for messages.
pub(super) const WAIT: Duration = Duration::from_millis(200);

/// How often is looked for what must not be there.
const LOOKS: usize = 3;

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

    /// The broker cannot do what the law is about, which is said and not hidden.
    pub(super) fn cannot(&self, what: &str) {
        eprintln!("the law {} asks for less: {what}", self.law);
    }

    pub(super) async fn publish(&self, messages: &[Sent]) {
        self.harness.publish(&self.queue, messages).await;
    }

    /// So many messages, `m-0` and so on.
    pub(super) async fn publish_some(&self, messages: usize) {
        let messages: Vec<Sent> = (0..messages).map(|n| Sent::new(format!("m-{n}"))).collect();
        self.publish(&messages).await;
    }

    pub(super) async fn source(&self) -> H::Source {
        self.harness.source(&self.queue).await
    }

    /// When what has to be has not been.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.harness.patience()
    }

    /// One call, which ends.
    pub(super) async fn within<T>(&self, call: impl Future<Output = T>) -> T {
        let patience = self.harness.patience();
        match tokio::time::timeout(patience, call).await {
            Ok(answer) => answer,
            Err(_) => self.fail(format_args!("a call did not end within {patience:?}")),
        }
    }

    /// One call of `receive`. A broker that is not ready yet is asked again by whoever calls.
    pub(super) async fn receive_once(&self, source: &mut H::Source, most: usize) -> Vec<Delivery> {
        match self.within(source.receive(most, WAIT)).await {
            Ok(came) => {
                self.check(came.len() <= most, format_args!("{} came of {most} at most", came.len()));
                came
            }
            Err(error) if error.may_retry() => Vec::new(),
            Err(error) => self.fail(format_args!("nothing was received: {error}")),
        }
    }

    /// Exactly so many messages, in as many calls as it takes. The source is kept meanwhile.
    pub(super) async fn receive(&self, source: &mut H::Source, count: usize) -> Vec<Delivery> {
        let (until, mut kept) = (self.deadline(), Instant::now());
        let mut came = Vec::new();
        while came.len() < count {
            if kept.elapsed() >= source.renew_after() {
                kept = Instant::now();
                self.keep(source, &receipts(&came)).await;
            }
            self.check(
                Instant::now() < until,
                format_args!("{} of {count} came: {:?}", came.len(), ids(&came)),
            );
            came.extend(self.receive_once(source, count - came.len()).await);
        }
        came
    }

    pub(super) async fn settle(&self, source: &mut H::Source, settled: &[(Receipt, Settle)]) {
        let until = self.deadline();
        while let Err(error) = self.within(source.settle(settled)).await {
            self.judge(&error, until, "messages were not settled").await;
        }
    }

    pub(super) async fn keep(&self, source: &mut H::Source, held: &[Receipt]) {
        let until = self.deadline();
        while let Err(error) = self.within(source.keep(held)).await {
            self.judge(&error, until, "messages were not kept").await;
        }
    }

    pub(super) async fn leave(&self, mut source: H::Source) {
        let until = self.deadline();
        while let Err(error) = self.within(source.leave()).await {
            self.judge(&error, until, "the source did not leave").await;
        }
    }

    async fn judge(&self, error: &SourceError, until: Instant, what: &str) {
        self.check(error.may_retry() && Instant::now() < until, format_args!("{what}: {error}"));
        tokio::time::sleep(WAIT).await;
    }

    /// What the broker has left, if it tells. It may need a moment to count.
    pub(super) async fn left_is(&self, count: usize) {
        let until = self.deadline();
        while let Some(left) = self.harness.left(&self.queue).await {
            if left == count {
                return;
            }
            let late = Instant::now() >= until;
            self.check(!late, format_args!("{left} messages are not acknowledged, and not {count}"));
            tokio::time::sleep(WAIT / 4).await;
        }
    }

    /// The broker has not fewer left, whenever asked.
    pub(super) async fn left_stays(&self, count: usize) {
        for _ in 0..LOOKS {
            let left = self.harness.left(&self.queue).await;
            self.check(
                left.is_none_or(|left| left == count),
                format_args!("{left:?} messages are not acknowledged, and not {count}"),
            );
            tokio::time::sleep(WAIT / 4).await;
        }
    }

    /// What comes besides a message that is published now.
    pub(super) async fn besides_the_last(&self, source: &mut H::Source) -> Vec<Delivery> {
        let last = Sent::new(format!("last-{}", uuid::Uuid::now_v7()));
        self.publish(std::slice::from_ref(&last)).await;
        let until = self.deadline();
        let (mut came, mut seen) = (Vec::new(), false);
        while !seen {
            self.check(
                Instant::now() < until,
                format_args!("the last one did not come, but {:?}", ids(&came)),
            );
            for delivery in self.receive_once(source, 100).await {
                if id(&delivery) == last.id() {
                    seen = true;
                    self.settle(source, &[(delivery.receipt, Settle::Ack)]).await;
                } else {
                    came.push(delivery);
                }
            }
        }
        // Without an order it may have overtaken others.
        for _ in 0..if self.can.order { 1 } else { LOOKS } {
            came.extend(self.receive_once(source, 100).await);
        }
        came
    }

    /// Everything is done: a new consumer gets nothing, and the broker says so too.
    pub(super) async fn all_is_done(&self) {
        let mut next = self.source().await;
        let came = self.besides_the_last(&mut next).await;
        self.check(came.is_empty(), format_args!("done, and came again: {:?}", ids(&came)));
        self.leave(next).await;
        self.left_is(0).await;
    }
}

/// The id of a message.
pub(super) fn id(delivery: &Delivery) -> &str {
    delivery.header(headers::ID).unwrap_or_default()
}

pub(super) fn ids(came: &[Delivery]) -> Vec<&str> {
    came.iter().map(id).collect()
}

pub(super) fn sorted(came: &[Delivery]) -> Vec<&str> {
    let mut ids = ids(came);
    ids.sort_unstable();
    ids
}

pub(super) fn all(came: &[Delivery], settle: Settle) -> Vec<(Receipt, Settle)> {
    came.iter().map(|delivery| (delivery.receipt, settle)).collect()
}

pub(super) fn receipts(came: &[Delivery]) -> Vec<Receipt> {
    came.iter().map(|delivery| delivery.receipt).collect()
}
