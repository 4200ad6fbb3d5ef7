//! Whether a queue can keep what is not done.
//!
//! A passive declaration tells only that a queue is there. A declaration that differs is refused, and the refusal says in
//! what: first of all durability and what deletes the queue, then its arguments. So a queue is declared as none can be. That
//! makes none either, should the queue have gone in between. Policies are not told, and who may not configure the queue
//! learns nothing.

use lapin::Connection;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};

use crate::sink::rabbitmq::short;
use crate::source::SourceError;

const TYPE: &str = "x-queue-type";
const DEAD_LETTERS: &str = "x-dead-letter-exchange";

/// Refuses a queue of which it is known that it loses messages. What it may lose is told.
pub(super) async fn check(connection: &Connection, queue: &str) -> Result<Option<String>, SourceError> {
    let no_type = [(TYPE, AMQPValue::LongString("semel-asks".into()))];
    let told = ask(connection, queue, &no_type).await?;
    refuse(&told, queue)?;
    if current(&told, TYPE) == Some(Some("stream")) {
        return Err(SourceError::for_good(format!(
            "the queue {queue:?} is a stream: it does not keep what is not acknowledged for this consumer, and whoever \
             connects again goes on behind it; bind a quorum queue to the same exchange and consume that"
        )));
    }
    if current(&told, TYPE) != Some(Some("quorum")) {
        return Ok(None);
    }
    let no_exchange =
        [(TYPE, AMQPValue::LongString("quorum".into())), (DEAD_LETTERS, AMQPValue::Boolean(true))];
    let told = ask(connection, queue, &no_exchange).await?;
    Ok((current(&told, DEAD_LETTERS) == Some(None)).then(|| {
        format!(
            "the quorum queue {queue:?} has no dead letter exchange among its arguments: with a delivery limit, which is \
             20 unless set from RabbitMQ 4.0 on, it drops messages that came back so often; set {DEAD_LETTERS} or \
             x-delivery-limit, by argument or policy"
        )
    }))
}

/// The refusal, in the server's words.
async fn ask(
    connection: &Connection,
    queue: &str,
    arguments: &[(&str, AMQPValue)],
) -> Result<String, SourceError> {
    let lost = |error: lapin::Error| SourceError::later(format!("RabbitMQ could not be asked: {error}"));
    // The refusal closes its channel.
    let channel = connection.create_channel().await.map_err(lost)?;
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert((*name).into(), value.clone());
    }
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let asked = channel.queue_declare(short(queue).unwrap_or_default(), durable, table).await;
    Ok(asked.err().map(|error| error.to_string()).unwrap_or_default())
}

fn refuse(told: &str, queue: &str) -> Result<(), SourceError> {
    let why = if current(told, "durable").is_some() {
        "is not durable: it is gone when the server restarts"
    } else if current(told, "auto_delete").is_some() {
        "is auto-delete: it is gone when its last consumer is"
    } else if current(told, "exclusive").is_some() || told.contains("RESOURCE_LOCKED") {
        "is exclusive: it is gone with its connection"
    } else {
        return Ok(());
    };
    Err(SourceError::for_good(format!(
        "the queue {queue:?} {why}, and messages with it; declare a durable one"
    )))
}

/// What a queue has, where the refusal is about this: `Some(None)` that it has nothing.
fn current<'a>(told: &'a str, name: &str) -> Option<Option<&'a str>> {
    let (_, about) = told.split_once(&format!("inequivalent arg '{name}' "))?;
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
