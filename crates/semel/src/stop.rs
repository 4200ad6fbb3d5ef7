//! Waiting for a stop. The loop that waits owns the sender of the flag, so the flag outlives the wait.

use std::time::Duration;

use tokio::sync::watch;

pub(crate) async fn asked_to_stop(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Pauses, at most until the stop.
pub(crate) async fn pause(time: Duration, stopped: &mut watch::Receiver<bool>) {
    let _ = tokio::time::timeout(time, asked_to_stop(stopped)).await;
}
