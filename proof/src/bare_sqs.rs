//! SQS over plain HTTP, for judges that have nothing to do with what they judge.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

/// Nothing here takes this long on a machine that works.
const SOON: Duration = Duration::from_secs(60);

/// A server.
#[derive(Clone, Debug)]
pub struct BareSqs {
    url: String,
}

/// A message as the server gave it.
#[derive(Clone, Debug)]
pub struct BareMessage {
    /// The body.
    pub body: String,
    /// Attributes, those of the server's own included.
    pub attributes: Vec<(String, String)>,
}

impl BareMessage {
    /// An attribute by its name.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(there, _)| there == name).map(|(_, text)| text.as_str())
    }
}

impl BareSqs {
    /// The one at this address, `http://HOST:PORT`.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self { url: url.trim_end_matches('/').to_owned() }
    }

    /// The URL of a queue of that name.
    #[must_use]
    pub fn queue(&self, name: &str) -> String {
        format!("{}/000000000000/{name}", self.url)
    }

    /// One request of the JSON protocol.
    ///
    /// # Errors
    /// Where the status is not 200: what was answered.
    ///
    /// # Panics
    /// Without a server that answers.
    pub fn call(&self, action: &str, body: &Value) -> Result<Value, Value> {
        let address = self.url.strip_prefix("http://").expect("plain http");
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
        match head.split(' ').nth(1) {
            Some("200") => Ok(value),
            _ => Err(json!({ "head": head, "body": value })),
        }
    }

    /// Makes a queue; one whose name ends in `.fifo` is such a one.
    ///
    /// # Panics
    /// When the server does not.
    pub fn make(&self, name: &str, attributes: &[(&str, &str)]) -> String {
        let mut all = serde_json::Map::new();
        if name.ends_with(".fifo") {
            all.insert("FifoQueue".to_owned(), json!("true"));
        }
        all.extend(attributes.iter().map(|(name, text)| ((*name).to_owned(), json!(text))));
        self.call("CreateQueue", &json!({ "QueueName": name, "Attributes": all })).expect("a queue");
        self.queue(name)
    }

    /// Puts a message into a queue, under a group where one is given. Only FIFO queues have a use for the id.
    ///
    /// # Panics
    /// When the server does not take it.
    pub fn send(
        &self,
        queue: &str,
        group: Option<&str>,
        attributes: &[(&str, &str)],
        deduplication: &str,
        body: &str,
    ) {
        let attribute = |(name, text): &(&str, &str)| {
            ((*name).to_owned(), json!({ "DataType": "String", "StringValue": text }))
        };
        let attributes: serde_json::Map<String, Value> = attributes.iter().map(attribute).collect();
        let mut message = json!({ "QueueUrl": queue, "MessageBody": body, "MessageAttributes": attributes });
        if let Some(group) = group {
            message["MessageGroupId"] = json!(group);
        }
        if queue.ends_with(".fifo") {
            message["MessageDeduplicationId"] = json!(deduplication);
        }
        self.call("SendMessage", &message).expect("sent");
    }

    /// Messages in a queue, those that somebody works on included.
    ///
    /// # Panics
    /// When the server does not tell.
    #[must_use]
    pub fn len(&self, queue: &str) -> usize {
        let asked = json!({ "QueueUrl": queue, "AttributeNames": ["All"] });
        let answer = self.call("GetQueueAttributes", &asked).expect("attributes");
        ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
            .iter()
            .map(|name| {
                answer["Attributes"][name].as_str().and_then(|n| n.parse::<usize>().ok()).unwrap_or(0)
            })
            .sum()
    }

    /// Everything that can be had of a queue now, taken out of it: a group holds back what follows one in flight.
    ///
    /// # Panics
    /// When the server does not give it.
    pub fn take(&self, queue: &str) -> Vec<BareMessage> {
        let receive = json!({
            "QueueUrl": queue,
            "MaxNumberOfMessages": 10,
            "AttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
        });
        let mut all = Vec::new();
        loop {
            let received = self.call("ReceiveMessage", &receive).expect("received");
            let messages = received["Messages"].as_array().cloned().unwrap_or_default();
            if messages.is_empty() {
                return all;
            }
            for message in messages {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let own = message["Attributes"].as_object().into_iter().flatten();
                let theirs = message["MessageAttributes"].as_object().into_iter().flatten();
                all.push(BareMessage {
                    body: text(&message["Body"]),
                    attributes: own
                        .map(|(name, value)| (name.clone(), text(value)))
                        .chain(theirs.map(|(name, value)| (name.clone(), text(&value["StringValue"]))))
                        .collect(),
                });
                let delete = json!({ "QueueUrl": queue, "ReceiptHandle": message["ReceiptHandle"] });
                self.call("DeleteMessage", &delete).expect("deleted");
            }
        }
    }
}
