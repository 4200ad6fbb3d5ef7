use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use testkit::services::{Service, require};

use crate::servers::{soon, unique};

async fn channel(url: &str) -> (Connection, Channel) {
    let connection = soon(Connection::connect(url, ConnectionProperties::default())).await.expect("connect");
    let channel = soon(connection.create_channel()).await.expect("a channel");
    (connection, channel)
}

async fn publish(channel: &Channel, queue: &str, id: &str) -> Confirmation {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let properties = BasicProperties::default().with_message_id(id.into()).with_delivery_mode(2);
    let sent = channel.basic_publish(ShortString::default(), queue.into(), options, b"body", properties);
    let confirm = soon(sent).await.expect("published");
    soon(confirm).await.expect("a confirmation")
}

#[tokio::test]
async fn a_confirm_means_in_the_queue_and_the_unroutable_comes_back() {
    let Some(rabbitmq) = require(Service::Rabbitmq) else { return };
    let (_connection, channel) = channel(rabbitmq.url()).await;
    let queue = unique("smoke");
    let declare = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.as_str().into(), declare, FieldTable::default()).await.unwrap();

    let unasked = publish(&channel, &queue, "m-0").await;
    assert!(matches!(unasked, Confirmation::NotRequested), "{unasked:?}");
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let taken = publish(&channel, &queue, "m-1").await;
    assert!(matches!(taken, Confirmation::Ack(None)), "{taken:?}");

    // The broker acknowledges what it could route nowhere, too: only the return tells.
    match publish(&channel, &unique("no-such-queue"), "m-2").await {
        Confirmation::Ack(Some(returned)) => {
            assert_eq!(returned.reply_code, 312, "NO_ROUTE");
            let id = returned.delivery.properties.message_id().as_ref().unwrap();
            assert_eq!(id.as_str(), "m-2");
        }
        other => panic!("an unroutable message was not returned: {other:?}"),
    }

    let mut ids = Vec::new();
    let get = BasicGetOptions { no_ack: true };
    while let Some(message) = soon(channel.basic_get(queue.as_str().into(), get)).await.unwrap() {
        ids.push(message.delivery.properties.message_id().as_ref().unwrap().to_string());
    }
    assert_eq!(ids, ["m-0", "m-1"]);
    channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
}

#[tokio::test]
async fn a_full_queue_refuses_with_a_nack() {
    let Some(rabbitmq) = require(Service::Rabbitmq) else { return };
    let (_connection, channel) = channel(rabbitmq.url()).await;
    let queue = unique("full");
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), 1.into());
    arguments.insert("x-overflow".into(), lapin::types::AMQPValue::LongString("reject-publish".into()));
    let declare = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.as_str().into(), declare, arguments).await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let first = publish(&channel, &queue, "fits").await;
    assert!(matches!(first, Confirmation::Ack(None)), "{first:?}");
    let second = publish(&channel, &queue, "does-not").await;
    assert!(matches!(second, Confirmation::Nack(None)), "{second:?}");
}
