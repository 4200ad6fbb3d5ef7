//! The log, on stderr.

use tracing_subscriber::filter::{Targets, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

pub(crate) fn parse_level(text: &str) -> Result<tracing::Level, String> {
    use tracing::Level;
    Ok(match text {
        "error" => Level::ERROR,
        "warn" => Level::WARN,
        "info" => Level::INFO,
        "debug" => Level::DEBUG,
        "trace" => Level::TRACE,
        _ => return Err(format!("{text:?} is not a log level; use error, warn, info, debug, trace")),
    })
}

/// Logs our own lines at the given level, and those of libraries from WARN up.
pub(crate) fn to_stderr(level: tracing::Level) {
    let targets = Targets::new().with_target("semel", level).with_default(level.min(tracing::Level::WARN));
    // Each line names its request by itself. Spans cost time on every request, so only debug and trace have them.
    let spans = level >= tracing::Level::DEBUG;
    let ours = filter_fn(move |metadata| {
        (spans || metadata.is_event()) && targets.would_enable(metadata.target(), metadata.level())
    });
    let lines = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_target(false);
    // Fails only if a subscriber is already installed; then that one logs.
    let _ = lines.with_max_level(level).finish().with(ours).try_init();
}
