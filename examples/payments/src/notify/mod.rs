//! `payments notify`: the consumer. What the service tells through Kafka becomes a row in `notifications`, once.
//!
//! ```text
//!  Kafka (committed data) ─▶ Consumer ─▶ begin ─▶ marks ─▶ notifications ─▶ commit ─▶ offset
//! ```
//!
//! The relay publishes at least once and the broker delivers at least once; the mark, in the transaction of the row, makes
//! one of it. A crash before the commit leaves nothing and the message comes again; a crash after it leaves both, and the
//! message that comes again is known.

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

/// A member that is silent for so long is taken for dead; the least a broker takes unless it is set up otherwise.
const SESSION: Duration = Duration::from_secs(6);
/// How soon a topic that is not there yet is looked for again.
const LOOK_AGAIN_MS: &str = "2000";
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
const PRUNE_EVERY: Duration = Duration::from_secs(600);

/// Notifies until SIGTERM or SIGINT: what is being handled ends and is settled, and the partitions are given back.
pub async fn run(options: &NotifyOptions) -> Result<(), Failed> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let inbox = Inbox::new(&options.group)?;
    let table = Notifications::open(place::pool(&options.store).await?, inbox).await?;
    let mut source = KafkaSource::options(&options.brokers, &options.group)
        .topics(&[PAYMENTS])
        .session(SESSION)
        .set("topic.metadata.refresh.interval.ms", LOOK_AGAIN_MS)?;
    if let Some(member) = &options.member {
        source = source.set("group.instance.id", member)?;
    }
    let mut source = source.open()?;
    if source.retention().await.is_some_and(|kept| kept >= WINDOW) {
        eprintln!("payments: the topic keeps messages for longer than they are remembered here ({WINDOW:?})");
    }
    let bounds = ConsumerOptions::default().pause(PAUSE.0, PAUSE.1).identify(identify());
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
    println!("stopped after {} messages, {} of them unreadable", ended.handled + ended.buried, ended.buried);
    Ok(())
}

async fn prune(table: Notifications) {
    loop {
        tokio::time::sleep(PRUNE_EVERY).await;
        if let Err(error) = table.prune().await {
            eprintln!("payments: old marks were not forgotten, and will be later: {error}");
        }
    }
}

/// By the event's id. Where a test wants to see that this matters (`PAYMENTS_PLANTED=no-inbox`, in a build for tests only),
/// each delivery gets a name of its own, and nothing is ever known again.
fn identify() -> Identify {
    let planted = std::env::var("PAYMENTS_PLANTED").is_ok_and(|bug| bug == "no-inbox");
    if cfg!(feature = "crash-points") && planted {
        eprintln!("payments: PLANTED: the inbox remembers nothing");
        return Identify::By(Arc::new(|_| Some(semel::Key::random().as_str().to_owned())));
    }
    Identify::ByEvent
}
