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
        _ => return Err(format!("{text:?} is no log level; use error, warn, info, debug, trace")),
    })
}

/// What is ours at the level that was asked for; what others say only when it is a warning.
pub(crate) fn to_stderr(level: tracing::Level) {
    let targets = Targets::new().with_target("semel", level).with_default(level.min(tracing::Level::WARN));
    // Lines say by themselves whose they are; the spans around them are for those who look closely, and cost
    // every request its share.
    let spans = level >= tracing::Level::DEBUG;
    let ours = filter_fn(move |metadata| {
        (spans || metadata.is_event()) && targets.would_enable(metadata.target(), metadata.level())
    });
    let lines = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_target(false);
    // Fails only where somebody else logs already, and then that one does.
    let _ = lines.with_max_level(level).finish().with(ours).try_init();
}
