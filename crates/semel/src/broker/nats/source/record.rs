//! Converts a message of a stream to a delivery.

use async_nats::Message;

use crate::sink::headers::KEY;
use crate::source::{Delivery, Receipt};

/// Headers that may hold the key, the most reliable first. The subject is the last resort.
const KEYS: [&str; 2] = [KEY, "ce-partitionkey"];

pub(super) fn delivery(
    message: Message,
    stream: &str,
    sequence: u64,
    delivered: i64,
    lineage: &str,
) -> Delivery {
    let position = format!("{stream}/{sequence}");
    let mut delivery = Delivery::new(Receipt(0), stream, position, message.payload);
    delivery.lineage = Some(lineage.to_owned());
    delivery.deliveries = u32::try_from(delivered).ok();
    for (name, values) in message.headers.iter().flat_map(|headers| headers.iter()) {
        for value in values {
            delivery.headers.push((name.to_string(), value.as_str().to_owned()));
        }
    }
    // The map has no order. Sorted, redeliveries of a message look the same.
    delivery.headers.sort();
    let key = KEYS.iter().find_map(|name| delivery.header(name)).map(str::to_owned);
    delivery.key = Some(key.unwrap_or_else(|| message.subject.to_string()));
    delivery
}
