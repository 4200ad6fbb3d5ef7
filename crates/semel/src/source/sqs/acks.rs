//! What SQS is told of messages, ten at a time.

use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry,
};

use futures_util::stream::{self, StreamExt};
use tokio::time::{Instant, timeout_at};

use super::super::Receipt;
use super::seconds;
use crate::sink::sqs::client::SqsError;
use crate::sink::sqs::message::ENTRIES_MAX;

/// Requests under way at once.
const REQUESTS_MAX: usize = 8;

/// What is to become of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// They are done.
    Delete,
    /// Others may have them at once.
    GiveBack,
    /// They are ours for that long from now on.
    Keep(Duration),
}

/// What came of telling.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum AckResult {
    Heard,
    /// Its time is over, or another has it.
    NotOurs,
    Unheard(String),
}

/// Tells it until then. What is not answered was not heard. What is given back is so in its order, which others then see.
pub(super) async fn tell(
    client: &Client,
    url: &str,
    messages: &[(Receipt, String)],
    fate: Fate,
    until: Instant,
) -> Vec<(Receipt, AckResult)> {
    let requests = match fate {
        Fate::GiveBack => 1,
        Fate::Delete | Fate::Keep(_) => REQUESTS_MAX,
    };
    // Each has its part: futures that borrow from a slice are not `Send` for every lifetime.
    let parts: Vec<_> = messages.chunks(ENTRIES_MAX).map(<[_]>::to_vec).collect();
    let parts = parts.into_iter().map(|part| tell_part(client, url, part, fate, until));
    let told: Vec<Vec<_>> = stream::iter(parts).buffered(requests).collect().await;
    told.into_iter().flatten().collect()
}

async fn tell_part(
    client: &Client,
    url: &str,
    part: Vec<(Receipt, String)>,
    fate: Fate,
    until: Instant,
) -> Vec<(Receipt, AckResult)> {
    let heard = match fate {
        Fate::Delete => in_time(until, delete(client, url, &part)).await,
        Fate::GiveBack => in_time(until, change(client, url, &part, Duration::ZERO)).await,
        Fate::Keep(visibility) => in_time(until, change(client, url, &part, visibility)).await,
    };
    let told = |receipt: &Receipt| {
        let id = receipt.0.to_string();
        match &heard {
            Ok((heard, _)) if heard.contains(&id) => AckResult::Heard,
            Ok((_, failed)) => judge(failed.iter().find(|entry| entry.id() == id)),
            Err(trouble) => AckResult::Unheard(trouble.told.clone()),
        }
    };
    part.iter().map(|(receipt, _)| (*receipt, told(receipt))).collect()
}

/// One request that is slow does not void what others were answered. None is begun when the time is over.
async fn in_time<T>(
    until: Instant,
    request: impl Future<Output = Result<T, SqsError>>,
) -> Result<T, SqsError> {
    let late =
        |maybe_done| SqsError { told: "SQS did not answer in time".to_owned(), code: None, maybe_done };
    if Instant::now() >= until {
        return Err(late(false));
    }
    timeout_at(until, request).await.unwrap_or_else(|_| Err(late(true)))
}

type Heard = (Vec<String>, Vec<BatchResultErrorEntry>);

async fn delete(client: &Client, url: &str, part: &[(Receipt, String)]) -> Result<Heard, SqsError> {
    let mut request = client.delete_message_batch().queue_url(url);
    for (receipt, handle) in part {
        let entry =
            DeleteMessageBatchRequestEntry::builder().id(receipt.0.to_string()).receipt_handle(handle);
        request = request.entries(entry.build().map_err(incomplete)?);
    }
    let told = request.send().await.map_err(|error| SqsError::of(&error))?;
    Ok((told.successful.into_iter().map(|entry| entry.id).collect(), told.failed))
}

async fn change(
    client: &Client,
    url: &str,
    part: &[(Receipt, String)],
    visibility: Duration,
) -> Result<Heard, SqsError> {
    let mut request = client.change_message_visibility_batch().queue_url(url);
    for (receipt, handle) in part {
        let entry = ChangeMessageVisibilityBatchRequestEntry::builder()
            .id(receipt.0.to_string())
            .receipt_handle(handle)
            .visibility_timeout(seconds(visibility));
        request = request.entries(entry.build().map_err(incomplete)?);
    }
    let told = request.send().await.map_err(|error| SqsError::of(&error))?;
    Ok((told.successful.into_iter().map(|entry| entry.id).collect(), told.failed))
}

fn incomplete(error: impl std::fmt::Display) -> SqsError {
    SqsError { told: error.to_string(), code: None, maybe_done: false }
}

/// SQS has several names for a handle that is worth nothing any more. Where the fault is SQS's, it is asked again.
fn judge(failed: Option<&BatchResultErrorEntry>) -> AckResult {
    let Some(entry) = failed else { return AckResult::Unheard("SQS said nothing of a message".to_owned()) };
    let gone = ["ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue", "InvalidIdFormat"];
    let code = entry.code().trim_end_matches("Exception");
    if entry.sender_fault() && gone.iter().any(|name| code.ends_with(name)) {
        return AckResult::NotOurs;
    }
    AckResult::Unheard(format!("SQS: {}: {}", entry.code(), entry.message().unwrap_or("")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_slow_ends_with_the_time_of_all() {
        let until = Instant::now() + Duration::from_secs(1);
        let slow = in_time(until, std::future::pending::<Result<(), SqsError>>()).await;
        assert!(slow.is_err_and(|trouble| trouble.maybe_done));
        let begun_late = in_time(until, std::future::ready(Ok(()))).await;
        assert!(begun_late.is_err_and(|trouble| !trouble.maybe_done));
        let until = Instant::now() + Duration::from_secs(1);
        assert!(in_time(until, std::future::ready(Ok(()))).await.is_ok());
    }

    #[test]
    fn a_handle_that_is_worth_nothing_is_told_from_a_trouble() {
        let entry = |code: &str, sender_fault| {
            let entry = BatchResultErrorEntry::builder().id("1").code(code).sender_fault(sender_fault);
            judge(Some(&entry.build().unwrap()))
        };
        for code in
            ["ReceiptHandleIsInvalid", "AWS.SimpleQueueService.MessageNotInflight", "InvalidParameterValue"]
        {
            assert_eq!(entry(code, true), AckResult::NotOurs, "{code}");
        }
        assert!(matches!(entry("InternalError", false), AckResult::Unheard(_)));
        assert!(matches!(entry("AccessDenied", true), AckResult::Unheard(_)));
        assert!(matches!(judge(None), AckResult::Unheard(_)));
    }
}
