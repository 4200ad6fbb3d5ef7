//! Shutdown of a long-running command: it drains at the first signal and stops at once at the second.

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failed;
use crate::gateway;

/// Runs the future to its end. On SIGTERM, SIGINT or the end of stdin it calls `stop` and waits for the future.
pub(crate) async fn on_signal<T>(
    run: impl Future<Output = T>,
    until_stdin_ends: bool,
    stop: impl FnOnce(),
) -> Result<T, Failed> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut run = std::pin::pin!(run);
    tokio::select! {
        ended = &mut run => return Ok(ended),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = gateway::stdin_ended(until_stdin_ends) => {}
    }
    stop();
    let at_once = || Failed::not_done("stopped at once by a second signal; nothing is lost by that");
    tokio::select! {
        ended = &mut run => Ok(ended),
        _ = terminate.recv() => Err(at_once()),
        _ = interrupt.recv() => Err(at_once()),
    }
}
