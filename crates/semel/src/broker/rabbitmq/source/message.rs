//! Converts a RabbitMQ message to a delivery.

use lapin::message::Delivery as AmqpDelivery;
use lapin::types::{AMQPValue, FieldTable};

use super::options::KeyBy;
use crate::source::{Delivery, Receipt};

/// The header in which a quorum queue counts earlier deliveries.
const DELIVERY_COUNT: &str = "x-delivery-count";

pub(super) fn delivery(message: AmqpDelivery, queue: &str, connection: &str, key_by: &KeyBy) -> Delivery {
    let position = format!("{queue}/{connection}/{}", message.delivery_tag);
    let mut delivery = Delivery::new(Receipt(0), queue, position, message.data);
    let table = message.properties.headers().clone().unwrap_or_default();
    delivery.headers =
        table.inner().iter().filter_map(|(name, value)| Some((name.to_string(), text(value)?))).collect();
    for (name, property) in
        [("message-id", message.properties.message_id()), ("content-type", message.properties.content_type())]
    {
        if let Some(property) = property
            && delivery.header(name).is_none()
        {
            delivery.headers.push((name.to_owned(), property.to_string()));
        }
    }
    delivery.key = match key_by {
        KeyBy::Header(name) => delivery.header(name).map(str::to_owned),
        KeyBy::RoutingKey => Some(message.routing_key.to_string()),
        KeyBy::Nothing => None,
    };
    delivery.deliveries = Some(deliveries(&table, message.redelivered));
    delivery
}

fn text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok().map(str::to_owned),
        AMQPValue::ShortString(text) => Some(text.to_string()),
        _ => None,
    }
}

/// Classic queues only flag a redelivery: then there was at least one earlier delivery.
fn deliveries(table: &FieldTable, redelivered: bool) -> u32 {
    let before = match table.inner().get(DELIVERY_COUNT) {
        Some(AMQPValue::LongLongInt(count)) => u32::try_from(*count).ok(),
        Some(AMQPValue::LongInt(count)) => u32::try_from(*count).ok(),
        Some(AMQPValue::LongUInt(count)) => Some(*count),
        Some(AMQPValue::ShortInt(count)) => u32::try_from(*count).ok(),
        Some(AMQPValue::ShortUInt(count)) => Some(u32::from(*count)),
        _ => None,
    };
    before.unwrap_or_default().max(u32::from(redelivered)).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quorum_queue_counts_and_others_only_tell_that_it_came_before() {
        let mut counted = FieldTable::default();
        counted.insert(DELIVERY_COUNT.into(), AMQPValue::LongLongInt(3));
        assert_eq!(deliveries(&counted, true), 4);
        assert_eq!(deliveries(&FieldTable::default(), true), 2);
        assert_eq!(deliveries(&FieldTable::default(), false), 1);
    }
}
