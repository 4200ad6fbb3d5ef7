//! Converts an SQS message to a delivery.

use aws_sdk_sqs::types::{Message, MessageSystemAttributeName as System};

use crate::broker::sqs::message::{ENCODING, HEADERS, payload, unpacked};
use crate::source::{Delivery, Receipt};

/// SQS's system attributes that become headers of the same names.
const AS_HEADERS: [System; 3] =
    [System::MessageDeduplicationId, System::MessageGroupId, System::SequenceNumber];

pub(super) fn delivery(message: &Message, queue: &str, lineage: Option<&str>) -> Delivery {
    let system = |name: &System| message.attributes().and_then(|all| all.get(name)).map(String::as_str);
    let mut attributes: Vec<(&str, &str)> = message
        .message_attributes()
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| Some((name.as_str(), value.string_value()?)))
        .collect();
    // The map has no order.
    attributes.sort_unstable();
    let of = |wanted: &str| attributes.iter().find(|(name, _)| *name == wanted).map(|(_, text)| *text);
    let body = payload(message.body().unwrap_or(""), of(ENCODING));
    let position = message.message_id().unwrap_or("");
    let mut delivery = Delivery::new(Receipt(0), queue, position.to_owned(), body);
    delivery.lineage = lineage.map(str::to_owned);
    delivery.key = system(&System::MessageGroupId).map(str::to_owned);
    delivery.deliveries = system(&System::ApproximateReceiveCount).and_then(|count| count.parse().ok());
    // SQS's own come first: a producer could forge an attribute of the same name.
    for name in &AS_HEADERS {
        delivery.headers.extend(system(name).map(|text| (name.as_str().to_owned(), text.to_owned())));
    }
    for (name, text) in attributes {
        match name {
            ENCODING => {}
            HEADERS => match unpacked(text) {
                Some(packed) => delivery.headers.extend(packed),
                None => delivery.headers.push((name.to_owned(), text.to_owned())),
            },
            _ => delivery.headers.push((name.to_owned(), text.to_owned())),
        }
    }
    delivery
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_sdk_sqs::types::MessageAttributeValue;

    #[test]
    fn what_sqs_says_stands_before_what_the_producer_says() {
        let text = |text: &str| {
            MessageAttributeValue::builder().data_type("String").string_value(text).build().unwrap()
        };
        let message = Message::builder()
            .message_id("m-1")
            .body("AP8=")
            .attributes(System::MessageGroupId, "account-7")
            .attributes(System::MessageDeduplicationId, "e-1")
            .attributes(System::ApproximateReceiveCount, "3")
            .message_attributes("semel-id", text("e-1"))
            .message_attributes("MessageDeduplicationId", text("forged"))
            .message_attributes("semel-encoding", text("base64"))
            .message_attributes("semel-headers", text(r#"[["region","eu"]]"#))
            .build();
        let delivery = delivery(&message, "q.fifo", Some("arn"));
        assert_eq!((delivery.from.as_str(), delivery.place.as_str()), ("q.fifo", "m-1"));
        assert_eq!((delivery.key.as_deref(), delivery.deliveries), (Some("account-7"), Some(3)));
        assert_eq!(delivery.payload[..], [0, 255]);
        assert_eq!(delivery.header("MessageDeduplicationId"), Some("e-1"));
        assert_eq!(delivery.header("region"), Some("eu"));
        assert_eq!(delivery.header("semel-encoding"), None);
    }
}
