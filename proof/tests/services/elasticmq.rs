//! SQS over plain HTTP: the AWS SDK would cost minutes of build for three requests.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use testkit::services::{Service, require};

use crate::{SOON, unique};

/// One request of the JSON protocol. The status is not 200: the error's body comes back as `Err`.
fn call(url: &str, action: &str, body: &Value) -> Result<Value, Value> {
    let address = url.strip_prefix("http://").expect("plain http").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    let body = body.to_string();
    // HTTP/1.0: the answer ends where the connection does.
    let request = format!(
        "POST / HTTP/1.0\r\nHost: {address}\r\nX-Amz-Target: AmazonSQS.{action}\r\n\
         Content-Type: application/x-amz-json-1.0\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, text) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let value = serde_json::from_str(text).unwrap_or(Value::Null);
    if head.split(' ').nth(1) == Some("200") {
        Ok(value)
    } else {
        Err(json!({ "head": head, "body": value }))
    }
}

#[test]
fn a_repeated_deduplication_id_is_one_message() {
    let Some(sqs) = require(Service::Elasticmq) else { return };
    let url = sqs.url();
    let name = format!("{}.fifo", unique("smoke"));
    let created =
        json!({ "QueueName": name, "Attributes": { "FifoQueue": "true", "VisibilityTimeout": "60" } });
    let queue = call(url, "CreateQueue", &created).unwrap()["QueueUrl"].clone();
    let send = |id: &str, body: &str| {
        let message = json!({
            "QueueUrl": queue, "MessageBody": body, "MessageGroupId": "g", "MessageDeduplicationId": id
        });
        call(url, "SendMessage", &message).unwrap()["MessageId"].clone()
    };
    let first = send("d-1", "one");
    assert_eq!(send("d-1", "one"), first, "the duplicate got an identity of its own");
    assert_ne!(send("d-2", "two"), first);

    // Received and deleted until nothing is left: a group holds back what follows one in flight.
    let mut bodies = Vec::new();
    loop {
        let receive = json!({ "QueueUrl": queue, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 1 });
        let received = call(url, "ReceiveMessage", &receive).unwrap();
        let messages = received["Messages"].as_array().cloned().unwrap_or_default();
        if messages.is_empty() {
            break;
        }
        for message in messages {
            bodies.push(message["Body"].as_str().unwrap().to_owned());
            let delete = json!({ "QueueUrl": queue, "ReceiptHandle": message["ReceiptHandle"] });
            call(url, "DeleteMessage", &delete).unwrap();
        }
    }
    assert_eq!(bodies, ["one", "two"]);
    call(url, "DeleteQueue", &json!({ "QueueUrl": queue })).unwrap();
    let gone = json!({ "QueueUrl": queue, "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d" });
    assert!(call(url, "SendMessage", &gone).is_err(), "a queue that is gone took a message");
}
