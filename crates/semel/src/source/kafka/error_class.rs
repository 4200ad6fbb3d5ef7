//! What librdkafka's consumer complains of.

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::source::SourceError;

/// librdkafka tells of troubles that it goes on to mend; those that it cannot are for people.
pub(crate) fn judge<C: ConsumerContext + 'static>(
    consumer: &BaseConsumer<C>,
    error: &KafkaError,
) -> Result<(), SourceError> {
    if let Some((code, why)) = consumer.client().fatal_error() {
        return Err(SourceError::for_good(format!("Kafka's client has stopped ({code}): {why}")));
    }
    match error.rdkafka_error_code() {
        Some(
            Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::SaslAuthenticationFailed
            | Code::Authentication
            | Code::InvalidSessionTimeout
            | Code::InconsistentGroupProtocol
            | Code::UnknownTopicOrPartition
            | Code::AutoOffsetReset
            | Code::NoOffset,
        ) => Err(SourceError::later(error)),
        _ => {
            tracing::debug!(target: "semel::kafka", %error, "Kafka's client is in trouble and goes on");
            Ok(())
        }
    }
}
