//! Classifies errors of librdkafka's consumer.

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::source::SourceError;

/// librdkafka also reports errors that it recovers from. Only those that need an operator are returned.
pub(crate) fn judge<C: ConsumerContext + 'static>(
    consumer: &BaseConsumer<C>,
    error: &KafkaError,
) -> Result<(), SourceError> {
    if let Some((code, why)) = consumer.client().fatal_error() {
        return Err(SourceError::for_good(format!(
            "the Kafka client stopped with a fatal error ({code}): {why}"
        )));
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
            tracing::debug!(target: "semel::kafka", %error, "the Kafka client recovers from an error by itself");
            Ok(())
        }
    }
}
