//! Reads a queue's attributes. Used by the sink and the source.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::QueueAttributeName as Name;

use super::client::SqsError;

/// The attributes of a queue that the guarantees depend on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Facts {
    /// In order, and with duplicates dropped for a while.
    pub(super) fifo: bool,
    /// Message retention, if known.
    pub(super) retention: Option<Duration>,
    /// Region and account, if known.
    pub(super) lineage: Option<String>,
    /// Max receives, and the dead-letter queue.
    pub(super) redrive: Option<(u32, String)>,
}

impl Facts {
    /// Reads them from SQS.
    pub(super) async fn ask(client: &Client, url: &str) -> Result<Self, SqsError> {
        let asked = client.get_queue_attributes().queue_url(url).attribute_names(Name::All).send().await;
        let response = asked.map_err(|error| SqsError::of(&error))?;
        Ok(Self::read(response.attributes().unwrap_or(&HashMap::new())))
    }

    fn read(attributes: &HashMap<Name, String>) -> Self {
        let text = |name: Name| attributes.get(&name).map(String::as_str);
        let seconds = |text: &str| text.parse().ok().map(Duration::from_secs);
        Self {
            fifo: text(Name::FifoQueue) == Some("true"),
            retention: text(Name::MessageRetentionPeriod).and_then(seconds),
            // Without the queue's name, which is known separately.
            lineage: text(Name::QueueArn)
                .and_then(|arn| arn.rsplit_once(':'))
                .map(|(before, _)| before.to_owned()),
            redrive: text(Name::RedrivePolicy).and_then(redrive),
        }
    }
}

/// `maxReceiveCount` is a number in some answers and text in others.
fn redrive(policy: &str) -> Option<(u32, String)> {
    let policy: serde_json::Value = serde_json::from_str(policy).ok()?;
    let count = policy.get("maxReceiveCount")?;
    let count = count
        .as_u64()
        .and_then(|count| u32::try_from(count).ok())
        .or_else(|| count.as_str()?.parse().ok())?;
    Some((count, policy.get("deadLetterTargetArn")?.as_str()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_queue_says_is_read() {
        let attributes = [
            (Name::FifoQueue, "true"),
            (Name::MessageRetentionPeriod, "345600"),
            (Name::QueueArn, "arn:aws:sqs:eu-west-1:123456789012:a.fifo"),
            (
                Name::RedrivePolicy,
                r#"{"deadLetterTargetArn":"arn:aws:sqs:eu-west-1:1:d","maxReceiveCount":"5"}"#,
            ),
        ];
        let facts = Facts::read(&attributes.map(|(name, text)| (name, text.to_owned())).into());
        assert!(facts.fifo);
        assert_eq!(facts.retention, Some(Duration::from_secs(345_600)));
        assert_eq!(facts.lineage.as_deref(), Some("arn:aws:sqs:eu-west-1:123456789012"));
        assert_eq!(facts.redrive, Some((5, "arn:aws:sqs:eu-west-1:1:d".to_owned())));
        let silent = Facts::read(&HashMap::new());
        assert_eq!(silent, Facts { fifo: false, retention: None, lineage: None, redrive: None });
        assert_eq!(redrive(r#"{"deadLetterTargetArn":"d","maxReceiveCount":3}"#), Some((3, "d".to_owned())));
    }
}
