//! Classifies librdkafka's error codes.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use super::options::MissingTopic;
use crate::sink::{Published, SinkError};

/// What an error code says about an event that was alone in its batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ErrorClass {
    /// It will never be accepted.
    Refused,
    /// It was not published.
    NotPublished,
    /// In doubt.
    Maybe,
}

/// Only what the broker certainly rejected counts as not published. A retry inside librdkafka may hide an earlier
/// attempt that succeeded, so every timeout and transport error is in doubt.
pub(crate) fn of(code: Code, missing: MissingTopic) -> ErrorClass {
    match code {
        Code::MessageSizeTooLarge
        | Code::InvalidRecord
        | Code::InvalidTopic
        | Code::MessageBatchTooLarge
        | Code::PolicyViolation => ErrorClass::Refused,
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition => match missing {
            MissingTopic::Refuse => ErrorClass::Refused,
            _ => ErrorClass::NotPublished,
        },
        Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::QueueFull
        | Code::NotEnoughReplicas => ErrorClass::NotPublished,
        _ => ErrorClass::Maybe,
    }
}

pub(super) fn answer(code: Code, topic: &str, missing: MissingTopic) -> Published {
    let message = format!("Kafka did not accept the event for {topic}: {code}{}", advice(code));
    match of(code, missing) {
        ErrorClass::Refused => Published::Refused(SinkError::not_published(message)),
        // The broker is up, and the error concerns only this topic.
        ErrorClass::NotPublished if is_of_the_topic(code) => {
            Published::Failed(SinkError::not_published(message).destination_down())
        }
        ErrorClass::NotPublished => Published::Failed(SinkError::not_published(message)),
        ErrorClass::Maybe => Published::Failed(SinkError::maybe_published(message)),
    }
}

fn is_of_the_topic(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownTopic
            | Code::UnknownTopicOrPartition
            | Code::UnknownPartition
            | Code::TopicAuthorizationFailed
    )
}

pub(crate) fn advice(code: Code) -> &'static str {
    match code {
        Code::MessageSizeTooLarge => {
            "; raise the topic's max.message.bytes, or send a reference to the payload"
        }
        Code::UnknownTopic | Code::UnknownTopicOrPartition => "; create the topic",
        Code::TopicAuthorizationFailed => "; permit this user to write to the topic",
        Code::TransactionalIdAuthorizationFailed => "; permit this user to use the transactional id",
        Code::PurgeQueue | Code::PurgeInflight => "; the broker did not answer in time",
        _ => "",
    }
}

/// Whether another producer has taken over the transactional id.
pub(crate) fn is_fenced(code: Code) -> bool {
    matches!(
        code,
        Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch | Code::TransactionCoordinatorFenced
    )
}

pub(crate) fn code(error: &KafkaError) -> Code {
    match error {
        KafkaError::Transaction(cause) => cause.code(),
        other => other.rdkafka_error_code().unwrap_or(Code::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stays_so_is_refused_and_only_what_is_known_is_said() {
        let table = [
            (Code::MessageSizeTooLarge, ErrorClass::Refused),
            (Code::InvalidTopic, ErrorClass::Refused),
            (Code::UnknownTopic, ErrorClass::NotPublished),
            (Code::TopicAuthorizationFailed, ErrorClass::NotPublished),
            (Code::NotEnoughReplicasAfterAppend, ErrorClass::Maybe),
            (Code::MessageTimedOut, ErrorClass::Maybe),
            (Code::BrokerTransportFailure, ErrorClass::Maybe),
            (Code::PurgeQueue, ErrorClass::Maybe),
            (Code::PurgeInflight, ErrorClass::Maybe),
            (Code::Unknown, ErrorClass::Maybe),
        ];
        for (code, wanted) in table {
            assert_eq!(of(code, MissingTopic::Create), wanted, "{code:?}");
        }
        assert_eq!(of(Code::UnknownTopic, MissingTopic::Refuse), ErrorClass::Refused);
        assert_eq!(of(Code::UnknownTopicOrPartition, MissingTopic::Wait), ErrorClass::NotPublished);
    }
}
