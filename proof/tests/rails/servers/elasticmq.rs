//! SQS over plain HTTP.

use proof::bare_sqs::BareSqs;
use serde_json::json;
use testkit::services::{Service, require};

use crate::servers::unique;

#[test]
fn a_repeated_deduplication_id_is_one_message() {
    let Some(sqs) = require(Service::Elasticmq) else { return };
    let sqs = BareSqs::new(sqs.url());
    let queue = sqs.make(&format!("{}.fifo", unique("smoke")), &[("VisibilityTimeout", "60")]);
    let send = |id: &str, body: &str| {
        let message = json!({
            "QueueUrl": queue, "MessageBody": body, "MessageGroupId": "g", "MessageDeduplicationId": id
        });
        sqs.call("SendMessage", &message).unwrap()["MessageId"].clone()
    };
    let first = send("d-1", "one");
    assert_eq!(send("d-1", "one"), first, "the duplicate got an identity of its own");
    assert_ne!(send("d-2", "two"), first);
    let bodies: Vec<String> = sqs.take(&queue).into_iter().map(|message| message.body).collect();
    assert_eq!(bodies, ["one", "two"]);
    sqs.call("DeleteQueue", &json!({ "QueueUrl": queue })).unwrap();
    let gone = json!({ "QueueUrl": queue, "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d" });
    assert!(sqs.call("SendMessage", &gone).is_err(), "a queue that is gone took a message");
}
