//! Batches of marked messages beside one transaction for each, and beside the same batches without marks.
//!
//! The source is a queue in memory: the broker is not what is measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use semel::inbox::Inbox;
use semel::inbox::consumer::{Consumer, ConsumerOptions, Handler, HandlerError as NotHandled, Message};
use semel::source::memory::MemoryQueue;
use sqlx::postgres::{PgConnection, PgPool};
use tokio::sync::Notify;
use uuid::Uuid;

use super::place::{CALLS, Place};
use crate::Failed;
use crate::table::Table;

const ROUNDS: usize = 3;
/// Order is kept within each of so many keys.
const KEYS: usize = 1_000;
/// Where some messages come again, it is one in so many: in a batch that would be inserted at once, one is enough to make that
/// fail.
const KNOWN: usize = 10;
/// Longer than any round: nothing comes again because of the queue.
const LEASE: Duration = Duration::from_secs(3_600);
const INSERT: &str = "INSERT INTO effect (payload) SELECT unnest($1::bytea[])";

/// How messages are handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// All of a call marked by one statement, their effects inserted by another, one commit.
    Marked,
    /// The same without marks: a message that comes again has its effect again.
    Unmarked,
    /// A transaction for each: mark, effect, commit.
    OneByOne,
}

pub(super) async fn measure(place: &Place, size: usize, table: &mut Table) -> Result<(), Failed> {
    let many = 10_000 * size;
    let few = 400 * size;
    let (mut marked, mut unmarked, mut again, mut mixed) = (0.0_f64, 0.0_f64, 0.0_f64, 0.0_f64);
    let (mut single, mut side_by_side) = (0.0_f64, 0.0_f64);
    // By turns, and the best round of each counts. The first one warms connections and caches, and does not.
    for round in 0..=ROUNDS {
        let messages = fresh(many);
        let rates = [
            consume(place, How::Unmarked, &messages, CALLS, many).await?,
            consume(place, How::Marked, &messages, CALLS, many).await?,
            // Each of them is known by now.
            consume(place, How::Marked, &messages, CALLS, 0).await?,
            consume(place, How::Marked, &partly_known(&messages), CALLS, many - many.div_ceil(KNOWN)).await?,
            consume(place, How::OneByOne, &fresh(few), 1, few).await?,
            consume(place, How::OneByOne, &fresh(few * CALLS), CALLS, few * CALLS).await?,
        ];
        if round > 0 {
            let bests = [&mut unmarked, &mut marked, &mut again, &mut mixed, &mut single, &mut side_by_side];
            for (best, rate) in bests.into_iter().zip(rates) {
                *best = best.max(rate);
            }
        }
        place.run("TRUNCATE effect").await?;
    }
    let times = |rate: f64, floor: f64| format!("{:.2} ×", rate / floor);
    table.row("inbox: batches without marks", unmarked, "/s", "the floor: an effect as often as it comes");
    let note = format!("{} the floor (wanted: 0.8)", times(marked, unmarked));
    table.row("inbox: batches, each message once", marked, "/s", note);
    let note = format!("batches are {} (wanted: 5)", times(marked, single));
    table.row("inbox: a transaction for each", single, "/s", note);
    let note = format!("batches are {}", times(marked, side_by_side));
    table.row(&format!("inbox: a transaction for each, {CALLS} at once"), side_by_side, "/s", note);
    let note = format!("{} as fast as the first time", times(again, marked));
    table.row("inbox: messages that come again", again, "/s", note);
    let note =
        format!("{} as fast as when none is; what is new is then inserted twice", times(mixed, marked));
    table.row(&format!("inbox: one message in {KNOWN} comes again"), mixed, "/s", note);
    table.row(
        "inbox: one that comes again",
        1e6 / again,
        "µs",
        format!("of {:.2} µs the first time", 1e6 / marked),
    );
    Ok(())
}

/// New messages: ids as semel's relay sends them, and keys.
fn fresh(count: usize) -> Vec<(String, String)> {
    (0..count).map(|n| (Uuid::now_v7().to_string(), format!("account-{}", n % KEYS))).collect()
}

/// New messages, but for one in [`KNOWN`], which is one of these.
fn partly_known(known: &[(String, String)]) -> Vec<(String, String)> {
    let mut messages = fresh(known.len());
    messages.iter_mut().zip(known).step_by(KNOWN).for_each(|(message, known)| message.clone_from(known));
    messages
}

/// Messages per second from the start of a consumer until all are settled.
async fn consume(
    place: &Place,
    how: How,
    messages: &[(String, String)],
    calls: usize,
    effects: usize,
) -> Result<f64, Failed> {
    let queue = MemoryQueue::with_lease("payments", LEASE);
    let payload = "x".repeat(256);
    for (id, key) in messages {
        queue.push(Some(key), &[("semel-id", id)], payload.clone());
    }
    let before = place.effects().await?;
    let (left, all) = (AtomicUsize::new(messages.len()), Arc::new(Notify::new()));
    let inbox = Inbox::new("bench")?;
    let handler = Effects { pool: place.pool.clone(), inbox, how, left, all: Arc::clone(&all) };
    let options = ConsumerOptions::default().concurrency(calls);
    // A message for each call, where each has its own transaction.
    let options = if how == How::OneByOne { options.batch_max(1) } else { options };
    let consumer = Consumer::new("bench", queue.source(), handler, options);
    let stop = consumer.stop_handle();
    let stopper = tokio::spawn(async move {
        all.notified().await;
        stop.stop();
    });
    let begin = Instant::now();
    let ended = consumer.run().await?;
    let rate = messages.len() as f64 / begin.elapsed().as_secs_f64();
    stopper.await?;
    // Each of them once: nothing went wrong on the way.
    match (ended.handled as usize, (place.effects().await? - before) as usize, queue.len()) {
        (handled, made, 0) if (handled, made) == (messages.len(), effects) => Ok(rate),
        (handled, made, rest) => Err(format!(
            "{how:?}: {handled} of {} handled, {made} effects instead of {effects}, {rest} not settled",
            messages.len()
        )
        .into()),
    }
}

/// Inserts, and tells when so many messages are handled.
struct Effects {
    pool: PgPool,
    inbox: Inbox,
    how: How,
    left: AtomicUsize,
    all: Arc<Notify>,
}

impl Handler for Effects {
    async fn handle(&self, messages: &[Message]) -> Result<(), NotHandled> {
        let mut tx = self.pool.begin().await.map_err(NotHandled::transient)?;
        match self.how {
            How::Unmarked => insert(&mut tx, messages.iter()).await?,
            How::Marked => {
                let marked = self.inbox.mark_all_tx(&mut tx, messages).await?;
                insert(&mut tx, marked.fresh().map(|at| &messages[at])).await?;
                marked.end_tx(&mut tx).await?;
            }
            How::OneByOne => {
                for message in messages {
                    let work = async |tx: &mut PgConnection| insert(tx, std::iter::once(message)).await;
                    self.inbox.handle_tx(&mut tx, message, work).await?;
                }
            }
        }
        tx.commit().await.map_err(NotHandled::transient)?;
        if self.left.fetch_sub(messages.len(), Ordering::AcqRel) == messages.len() {
            self.all.notify_one();
        }
        Ok(())
    }
}

async fn insert<'m>(
    tx: &mut PgConnection,
    messages: impl Iterator<Item = &'m Message>,
) -> Result<(), NotHandled> {
    let payloads: Vec<&[u8]> = messages.map(Message::payload).collect();
    if payloads.is_empty() {
        return Ok(());
    }
    sqlx::query(INSERT).bind(payloads).execute(tx).await.map(drop).map_err(NotHandled::transient)
}
