use async_nats::HeaderMap;
use async_nats::jetstream::{self, Context, stream};
use testkit::services::{Service, require};

use crate::servers::{soon, unique};

async fn publish(context: &Context, subject: &str, id: &str) -> jetstream::publish::PublishAck {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", id);
    let sent = soon(context.publish_with_headers(subject.to_owned(), headers, "body".into())).await;
    soon(async { sent.expect("sent").await }).await.expect("an acknowledgement")
}

#[tokio::test]
async fn a_publish_is_acknowledged_and_a_repeated_id_recognised() {
    let Some(nats) = require(Service::Nats) else { return };
    let client = soon(async_nats::connect(nats.url())).await.unwrap();
    let context = jetstream::new(client.clone());
    let name = unique("smoke");
    let config =
        stream::Config { name: name.clone(), subjects: vec![format!("{name}.>")], ..Default::default() };
    let mut stream = soon(context.create_stream(config)).await.unwrap();

    let subject = format!("{name}.a");
    let first = publish(&context, &subject, "m-1").await;
    let again = publish(&context, &subject, "m-1").await;
    let other = publish(&context, &subject, "m-2").await;
    assert_eq!((first.duplicate, again.duplicate, other.duplicate), (false, true, false));
    assert_eq!((first.sequence, again.sequence, other.sequence), (1, 1, 2));
    assert_eq!(soon(stream.info()).await.unwrap().state.messages, 2);

    // No stream stores this subject: without an acknowledgement a publisher must not think so.
    let nowhere = soon(context.publish(unique("nowhere"), "body".into())).await.unwrap();
    assert!(soon(async { nowhere.await }).await.is_err());
    soon(context.delete_stream(name)).await.unwrap();
}
