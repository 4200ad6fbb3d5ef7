//! Acks to SQS: deletes messages and changes their visibility timeout, ten at a time.

use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry,
};

use futures_util::stream::{self, StreamExt};
use tokio::time::{Instant, timeout_at};

use super::seconds;
use crate::broker::sqs::client::SqsError;
use crate::broker::sqs::message::ENTRIES_MAX;
use crate::source::Receipt;

/// Concurrent requests.
const REQUESTS_MAX: usize = 8;

/// What to do with messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AckAction {
    /// Ack: they are done.
    Delete,
    /// Nack: visible to others at once.
    Release,
    /// Extends the lease to this long from now on.
    Extend(Duration),
}

/// SQS's answer for one message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum AckResult {
    Confirmed,
    /// Its lease has expired, or another consumer has it.
    NotOurs,
    Unconfirmed(String),
}

/// Sends the action for all messages until the deadline. What gets no answer is unconfirmed. Messages are released one
/// request at a time, so that others see them in order.
pub(super) async fn send(
    client: &Client,
    url: &str,
    messages: &[(Receipt, String)],
    action: AckAction,
    until: Instant,
) -> Vec<(Receipt, AckResult)> {
    let requests = match action {
        AckAction::Release => 1,
        AckAction::Delete | AckAction::Extend(_) => REQUESTS_MAX,
    };
    // Owned parts: futures that borrow from a slice are not `Send` for every lifetime.
    let parts: Vec<_> = messages.chunks(ENTRIES_MAX).map(<[_]>::to_vec).collect();
    let parts = parts.into_iter().map(|part| send_part(client, url, part, action, until));
    let results: Vec<Vec<_>> = stream::iter(parts).buffered(requests).collect().await;
    results.into_iter().flatten().collect()
}

async fn send_part(
    client: &Client,
    url: &str,
    part: Vec<(Receipt, String)>,
    action: AckAction,
    until: Instant,
) -> Vec<(Receipt, AckResult)> {
    let answer = match action {
        AckAction::Delete => in_time(until, delete(client, url, &part)).await,
        AckAction::Release => in_time(until, change(client, url, &part, Duration::ZERO)).await,
        AckAction::Extend(visibility) => in_time(until, change(client, url, &part, visibility)).await,
    };
    let result = |receipt: &Receipt| {
        let id = receipt.0.to_string();
        match &answer {
            Ok((confirmed, _)) if confirmed.contains(&id) => AckResult::Confirmed,
            Ok((_, failed)) => classify(failed.iter().find(|entry| entry.id() == id)),
            Err(error) => AckResult::Unconfirmed(error.message.clone()),
        }
    };
    part.iter().map(|(receipt, _)| (*receipt, result(receipt))).collect()
}

/// A timeout per request: a slow one does not void the answers of others. None is sent after the deadline.
async fn in_time<T>(
    until: Instant,
    request: impl Future<Output = Result<T, SqsError>>,
) -> Result<T, SqsError> {
    let late =
        |maybe_done| SqsError { message: "SQS did not answer in time".to_owned(), code: None, maybe_done };
    if Instant::now() >= until {
        return Err(late(false));
    }
    timeout_at(until, request).await.unwrap_or_else(|_| Err(late(true)))
}

/// Ids that SQS confirmed, and entries that failed.
type BatchAnswer = (Vec<String>, Vec<BatchResultErrorEntry>);

async fn delete(client: &Client, url: &str, part: &[(Receipt, String)]) -> Result<BatchAnswer, SqsError> {
    let mut request = client.delete_message_batch().queue_url(url);
    for (receipt, handle) in part {
        let entry =
            DeleteMessageBatchRequestEntry::builder().id(receipt.0.to_string()).receipt_handle(handle);
        request = request.entries(entry.build().map_err(incomplete)?);
    }
    let answer = request.send().await.map_err(|error| SqsError::of(&error))?;
    Ok((answer.successful.into_iter().map(|entry| entry.id).collect(), answer.failed))
}

async fn change(
    client: &Client,
    url: &str,
    part: &[(Receipt, String)],
    visibility: Duration,
) -> Result<BatchAnswer, SqsError> {
    let mut request = client.change_message_visibility_batch().queue_url(url);
    for (receipt, handle) in part {
        let entry = ChangeMessageVisibilityBatchRequestEntry::builder()
            .id(receipt.0.to_string())
            .receipt_handle(handle)
            .visibility_timeout(seconds(visibility));
        request = request.entries(entry.build().map_err(incomplete)?);
    }
    let answer = request.send().await.map_err(|error| SqsError::of(&error))?;
    Ok((answer.successful.into_iter().map(|entry| entry.id).collect(), answer.failed))
}

fn incomplete(error: impl std::fmt::Display) -> SqsError {
    SqsError { message: error.to_string(), code: None, maybe_done: false }
}

/// SQS has several error codes for an expired receipt handle. Any other error may be retried.
fn classify(failed: Option<&BatchResultErrorEntry>) -> AckResult {
    let Some(entry) = failed else {
        return AckResult::Unconfirmed("SQS returned no result for a message".to_owned());
    };
    let gone = ["ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue", "InvalidIdFormat"];
    let code = entry.code().trim_end_matches("Exception");
    if entry.sender_fault() && gone.iter().any(|name| code.ends_with(name)) {
        return AckResult::NotOurs;
    }
    AckResult::Unconfirmed(format!("SQS: {}: {}", entry.code(), entry.message().unwrap_or("")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_slow_ends_with_the_time_of_all() {
        let until = Instant::now() + Duration::from_secs(1);
        let slow = in_time(until, std::future::pending::<Result<(), SqsError>>()).await;
        assert!(slow.is_err_and(|error| error.maybe_done));
        let begun_late = in_time(until, std::future::ready(Ok(()))).await;
        assert!(begun_late.is_err_and(|error| !error.maybe_done));
        let until = Instant::now() + Duration::from_secs(1);
        assert!(in_time(until, std::future::ready(Ok(()))).await.is_ok());
    }

    #[test]
    fn an_invalid_handle_is_distinguished_from_an_outage() {
        let entry = |code: &str, sender_fault| {
            let entry = BatchResultErrorEntry::builder().id("1").code(code).sender_fault(sender_fault);
            classify(Some(&entry.build().unwrap()))
        };
        for code in
            ["ReceiptHandleIsInvalid", "AWS.SimpleQueueService.MessageNotInflight", "InvalidParameterValue"]
        {
            assert_eq!(entry(code, true), AckResult::NotOurs, "{code}");
        }
        assert!(matches!(entry("InternalError", false), AckResult::Unconfirmed(_)));
        assert!(matches!(entry("AccessDenied", true), AckResult::Unconfirmed(_)));
        assert!(matches!(classify(None), AckResult::Unconfirmed(_)));
    }
}
