//! `payments notify`: the consumer. Each event from Kafka becomes a row in `notifications`, once.
//!
//! ```text
//!  Kafka (committed data) ─▶ Consumer ─▶ begin ─▶ marks ─▶ notifications ─▶ commit ─▶ offset
//! ```
//!
//! The relay publishes at least once and the broker delivers at least once; the mark, in the transaction of the row,
//! makes it once. A crash before the commit leaves nothing and the message is redelivered; a crash after it leaves
//! both, and the redelivered message is recognised.

mod options;
mod table;

use std::sync::Arc;
use std::time::Duration;

use semel::inbox::consumer::{Consumer, ConsumerOptions};
use semel::inbox::{Inbox, WINDOW};
use semel::source::kafka::KafkaSource;
use semel::source::{Identify, Source};
use tokio::signal::unix::{SignalKind, signal};

pub use self::options::{NotifyOptions, USAGE};
pub use self::table::Notifications;
use crate::events::PAYMENTS;
use crate::{Failed, place};

/// A member that is silent for this long counts as dead; the least a broker accepts by default.
const SESSION: Duration = Duration::from_secs(6);
/// How soon a missing topic is looked up again.
const METADATA_REFRESH_MS: &str = "2000";
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
const PRUNE_EVERY: Duration = Duration::from_secs(600);

/// Notifies until SIGTERM or SIGINT: messages in flight are finished and settled, and the partitions are given back.
pub async fn run(options: &NotifyOptions) -> Result<(), Failed> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let inbox = Inbox::new(&options.group)?;
    let table = Notifications::open(place::pool(&options.store).await?, inbox).await?;
    let mut source = KafkaSource::options(&options.brokers, &options.group)
        .topics(&[PAYMENTS])
        .session(SESSION)
        .set("topic.metadata.refresh.interval.ms", METADATA_REFRESH_MS)?;
    if let Some(member) = &options.member {
        source = source.set("group.instance.id", member)?;
    }
    let mut source = source.open()?;
    if source.retention().await.is_some_and(|kept| kept >= WINDOW) {
        eprintln!("payments: the topic keeps messages for longer than the inbox remembers them ({WINDOW:?})");
    }
    let bounds = ConsumerOptions::default().backoff(PAUSE.0, PAUSE.1).identify(identify());
    let consumer = Consumer::new(&options.group, source, table.clone(), bounds).dead_letters(table.clone());

    let stop = consumer.stop_handle();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.stop();
    });
    let pruning = tokio::spawn(prune(table));
    println!("notifying of {PAYMENTS} from {} as {}", options.brokers, options.group);
    let ended = consumer.run().await;
    pruning.abort();
    let ended = ended?;
    println!(
        "stopped after {} messages, {} of them unreadable",
        ended.handled + ended.dead_letters,
        ended.dead_letters
    );
    Ok(())
}

async fn prune(table: Notifications) {
    loop {
        tokio::time::sleep(PRUNE_EVERY).await;
        if let Err(error) = table.prune().await {
            eprintln!("payments: could not delete old marks, will try again later: {error}");
        }
    }
}

/// Identifies messages by the event's id. To show that this matters, a test (`PAYMENTS_PLANTED=no-inbox`, in a build
/// for tests only) gives each delivery an id of its own, so that no duplicate is recognised.
fn identify() -> Identify {
    let planted = std::env::var("PAYMENTS_PLANTED").is_ok_and(|bug| bug == "no-inbox");
    if cfg!(feature = "crash-points") && planted {
        eprintln!("payments: PLANTED: the inbox remembers nothing");
        return Identify::By(Arc::new(|_| Some(semel::Key::random().as_str().to_owned())));
    }
    Identify::ByEvent
}
