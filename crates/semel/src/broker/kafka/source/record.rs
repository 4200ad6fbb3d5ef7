//! Converts a Kafka record to a delivery.

use bytes::Bytes;
use rdkafka::Message;
use rdkafka::message::Headers;

use crate::source::{Delivery, Receipt};

pub(crate) fn delivery(record: &impl Message, lineage: &str) -> Delivery {
    let position = format!("{}/{}/{}", record.topic(), record.partition(), record.offset());
    let payload = Bytes::copy_from_slice(record.payload().unwrap_or_default());
    let mut delivery = Delivery::new(Receipt(0), record.topic(), position, payload);
    delivery.lineage = Some(lineage.to_owned());
    delivery.key = record.key().map(text);
    let headers = record.headers().into_iter().flat_map(Headers::iter);
    delivery.headers = headers
        .filter_map(|header| {
            Some((header.key.to_owned(), std::str::from_utf8(header.value?).ok()?.to_owned()))
        })
        .collect();
    delivery
}

/// A key only has to be distinct: one that is not text becomes hexadecimal.
fn text(key: &[u8]) -> String {
    use std::fmt::Write;
    std::str::from_utf8(key).map_or_else(
        |_| {
            key.iter().fold(String::with_capacity(key.len() * 2), |mut hex, byte| {
                let _ = write!(hex, "{byte:02x}");
                hex
            })
        },
        str::to_owned,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_text_or_its_bytes() {
        assert_eq!(text(b"account-7"), "account-7");
        assert_eq!(text(&[0xff, 0x00, 0x1a]), "ff001a");
    }
}
