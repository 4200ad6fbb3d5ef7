//! What was taken from a source by hand, without a consumer around it.

use std::time::{Duration, Instant};

use semel::source::{Delivery, Receipt, Settle, Source};

use crate::sources::SOON;

/// One piece of the wait for messages.
const WAIT: Duration = Duration::from_millis(200);

/// So many messages, however many calls that takes.
pub async fn receive(source: &mut impl Source, count: usize) -> Vec<Delivery> {
    let until = Instant::now() + SOON;
    let mut came = Vec::new();
    while came.len() < count {
        assert!(Instant::now() < until, "{} of {count} came", came.len());
        came.extend(source.receive(count - came.len(), WAIT).await.unwrap());
    }
    came
}

/// All of them are settled like this.
pub fn all(came: &[Delivery], settle: Settle) -> Vec<(Receipt, Settle)> {
    came.iter().map(|delivery| (delivery.receipt, settle)).collect()
}

pub fn places(came: &[Delivery]) -> Vec<&str> {
    came.iter().map(|delivery| delivery.place.as_str()).collect()
}

pub fn ids(came: &[Delivery]) -> Vec<&str> {
    came.iter().filter_map(|delivery| delivery.header("semel-id")).collect()
}
