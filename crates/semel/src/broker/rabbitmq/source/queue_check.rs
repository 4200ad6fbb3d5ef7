//! Checks whether a queue can lose messages that are not acked.
//!
//! A passive declaration shows only that a queue exists. RabbitMQ refuses a declaration that differs, and the
//! error names the first difference: durability and auto-delete first, then arguments. So this declares the queue
//! with deliberately invalid arguments; the error reveals its settings. Nothing is created, even if the queue has just
//! been deleted. Policies stay hidden, and a user without permission to configure the queue learns nothing.

use lapin::Connection;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};

use crate::broker::rabbitmq::client::short;
use crate::source::SourceError;

const TYPE: &str = "x-queue-type";
const DEAD_LETTERS: &str = "x-dead-letter-exchange";

/// Refuses a queue that is known to lose messages. Returns a warning if it may lose some.
pub(super) async fn check(connection: &Connection, queue: &str) -> Result<Option<String>, SourceError> {
    let no_type = [(TYPE, AMQPValue::LongString("semel-asks".into()))];
    let refusal = declare(connection, queue, &no_type).await?;
    refuse(&refusal, queue)?;
    if current(&refusal, TYPE) == Some(Some("stream")) {
        return Err(SourceError::for_good(format!(
            "the queue {queue:?} is a stream: it does not redeliver unacked messages, and a consumer that reconnects \
             skips them; bind a quorum queue to the same exchange and consume that"
        )));
    }
    if current(&refusal, TYPE) != Some(Some("quorum")) {
        return Ok(None);
    }
    let no_exchange =
        [(TYPE, AMQPValue::LongString("quorum".into())), (DEAD_LETTERS, AMQPValue::Boolean(true))];
    let refusal = declare(connection, queue, &no_exchange).await?;
    Ok((current(&refusal, DEAD_LETTERS) == Some(None)).then(|| {
        format!(
            "the quorum queue {queue:?} has no dead letter exchange in its arguments: it drops messages that reach its \
             delivery limit (20 by default since RabbitMQ 4.0); set {DEAD_LETTERS} or x-delivery-limit, by argument \
             or policy"
        )
    }))
}

/// Declares the queue with these arguments. Returns the error text.
async fn declare(
    connection: &Connection,
    queue: &str,
    arguments: &[(&str, AMQPValue)],
) -> Result<String, SourceError> {
    let lost =
        |error: lapin::Error| SourceError::later(format!("cannot check the queue at RabbitMQ: {error}"));
    // The error closes its channel.
    let channel = connection.create_channel().await.map_err(lost)?;
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert((*name).into(), value.clone());
    }
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let declared = channel.queue_declare(short(queue).unwrap_or_default(), durable, table).await;
    Ok(declared.err().map(|error| error.to_string()).unwrap_or_default())
}

fn refuse(refusal: &str, queue: &str) -> Result<(), SourceError> {
    let why = if current(refusal, "durable").is_some() {
        "is not durable: it is deleted when the server restarts"
    } else if current(refusal, "auto_delete").is_some() {
        "is auto-delete: it is deleted with its last consumer"
    } else if current(refusal, "exclusive").is_some() || refusal.contains("RESOURCE_LOCKED") {
        "is exclusive: it is deleted with its connection"
    } else {
        return Ok(());
    };
    Err(SourceError::for_good(format!(
        "the queue {queue:?} {why}, and its messages are lost; declare a durable one"
    )))
}

/// The queue's setting, if the refusal is about this one; `Some(None)`: it is not set.
fn current<'a>(refusal: &'a str, name: &str) -> Option<Option<&'a str>> {
    let (_, about) = refusal.split_once(&format!("inequivalent arg '{name}' "))?;
    let (_, current) = about.rsplit_once("current is ")?;
    Some(current.split('\'').nth(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str, rest: &str) -> String {
        format!("PRECONDITION_FAILED - inequivalent arg '{name}' for queue 'q' in vhost '/': received {rest}")
    }

    #[test]
    fn a_refusal_tells_what_the_queue_is() {
        let quorum = refusal(TYPE, "'semel-asks' but current is 'quorum'");
        assert_eq!(current(&quorum, TYPE), Some(Some("quorum")));
        assert_eq!(current(&quorum, "durable"), None);
        let none = refusal(DEAD_LETTERS, "the value 'true' of type 'bool' but current is none");
        assert_eq!(current(&none, DEAD_LETTERS), Some(None));
        let set = refusal(
            DEAD_LETTERS,
            "the value 'true' of type 'bool' but current is the value 'x' of type 'longstr'",
        );
        assert_eq!(current(&set, DEAD_LETTERS), Some(Some("x")));
        assert!(refuse(&quorum, "q").is_ok() && refuse("ACCESS_REFUSED", "q").is_ok());
        assert!(!refuse(&refusal("durable", "'true' but current is 'false'"), "q").unwrap_err().may_retry());
    }
}
