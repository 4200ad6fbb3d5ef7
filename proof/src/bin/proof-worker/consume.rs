//! A consumer for killing: from a broker into a table in PostgreSQL, until SIGTERM.
//!
//! `proof-worker consume BROKER URL QUEUE POSTGRES_URL SCHEMA HOW MEMBER`. BROKER is `kafka`, `nats`, `rabbitmq`, `redis` or `sqs`, QUEUE the
//! name of the queue and of the group, and MEMBER a name among those of the group, or `-`. HOW is `right`, `slow`, `dead`
//! (each third message of a key cannot be handled and becomes a letter), `mended` (as `dead`, and all can be), or one of
//! the known mistakes `early`, `past`, `by-place`, `late-letter` and `unmarked`. It stops at the points of
//! [`semel::crash`]; those after the handling and around the commit are its own.

// The futures of Amazon's SDK are deep.

use std::process::ExitCode;
use std::time::Duration;

use semel::crash::{AFTER_COMMIT, AFTER_HANDLED, BEFORE_COMMIT, point};
use semel::inbox::Inbox;
use semel::inbox::consumer::{
    Consumer, ConsumerOptions, DeadLetter, DeadLetters, Handler, HandlerError, Message,
};
use semel::inbox::dead_letter::DeadLetterStore;
use semel::source::kafka::KafkaSource;
use semel::source::nats::NatsSource;
use semel::source::rabbitmq::RabbitmqSource;
use semel::source::redis_stream::RedisStreamSource;
use semel::source::sqs::SqsSource;
use semel::source::{Delivery, Identify, Receipt, Settle, Source, SourceError};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use tokio::signal::unix::{SignalKind, signal};

type Wrong = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
pub(crate) async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(2).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match Box::pin(consume(&args)).await {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn consume(args: &[&str]) -> Result<String, Wrong> {
    let [broker, url, queue, postgres, schema, how, member] = args else {
        return Err("usage: proof-worker consume BROKER URL QUEUE POSTGRES_URL SCHEMA HOW MEMBER".into());
    };
    let options: PgConnectOptions = postgres.parse()?;
    let options = options.options([("search_path", *schema)]);
    let pool = PgPoolOptions::new().max_connections(4).connect_with(options).await?;
    // Longer than any lease here.
    let slow = *how == "slow";
    let work = if slow { Duration::from_secs(12) } else { Duration::ZERO };
    let table = Table {
        pool,
        inbox: Inbox::new("judged")?,
        work,
        poison: matches!(*how, "dead" | "late-letter"),
        marks: *how != "unmarked",
    };
    let tables = format!("{postgres}?schema={schema}");
    match *broker {
        "kafka" => {
            // A broker that was killed may wait that long for members that are gone.
            let mut source = KafkaSource::options(url, queue)
                .topics(&[*queue])
                .session(Duration::from_secs(6))
                .max_poll_interval(Duration::from_secs(20));
            if *member != "-" {
                source = source.set("group.instance.id", member)?;
            }
            bring(source.open()?, table, how, &tables).await
        }
        "nats" => {
            // Who works slowly has to keep what it has in time, also on a busy machine.
            let wait = Duration::from_secs(if slow { 5 } else { 4 });
            let source = NatsSource::options(url, queue, queue).ack_wait(wait);
            bring(source.open()?, table, how, &tables).await
        }
        "rabbitmq" => {
            bring(RabbitmqSource::options(url, queue).prefetch(120).open()?, table, how, &tables).await
        }
        "redis" => {
            let source = RedisStreamSource::options(url, queue, queue)?.claim_after(Duration::from_secs(2));
            let source = if *member == "-" { source } else { source.consumer(member) };
            bring(source.open()?, table, how, &tables).await
        }
        "sqs" => {
            let source = SqsSource::options(&format!("{url}/000000000000/{queue}.fifo"))
                .credentials("somebody", "secret", None)
                .region("elasticmq")
                .visibility(Duration::from_secs(3));
            bring(source.open()?, table, how, &tables).await
        }
        _ => Err(format!("there is no source for {broker}").into()),
    }
}

async fn bring<S: Source>(source: S, table: Table, how: &str, tables: &str) -> Result<String, Wrong> {
    let identify = if how == "by-place" { Identify::ByPlace } else { Identify::ByEvent };
    let options = ConsumerOptions::default()
        .identify(identify)
        .in_flight_max(120)
        .batch_max(20)
        .concurrency(3)
        .backoff(Duration::from_millis(20), Duration::from_secs(1));
    match how {
        "early" => Box::pin(run(Consumer::new("judged", Early(source), table, options))).await,
        "past" => {
            Box::pin(run(Consumer::new("judged", Past { source, given: Vec::new() }, table, options))).await
        }
        "dead" | "mended" | "unmarked" => {
            // A letter that a killed one has taken is another's soon.
            let options = options
                .handle_timeout(Duration::from_secs(3))
                .dead_letter_poll_interval(Duration::from_millis(100));
            let tables = DeadLetterStore::open(tables).await?;
            Box::pin(run(Consumer::new("judged", source, table, options).dead_letters(tables))).await
        }
        "late-letter" => {
            let late = Late(table.pool.clone());
            Box::pin(run(Consumer::new("judged", source, table, options).dead_letters(late))).await
        }
        _ => Box::pin(run(Consumer::new("judged", source, table, options))).await,
    }
}

async fn run<S: Source, D: DeadLetters>(consumer: Consumer<S, Table, D>) -> Result<String, Wrong> {
    let stop = consumer.stop_handle();
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        terminate.recv().await;
        stop.stop();
    });
    println!("working");
    let ended = consumer.run().await?;
    Ok(format!("stopped after {} messages", ended.handled))
}

struct Table {
    pool: PgPool,
    inbox: Inbox,
    /// How long the effects of one call take.
    work: Duration,
    /// Each third message of a key cannot be handled.
    poison: bool,
    marks: bool,
}

impl Handler for Table {
    async fn handle(&self, messages: &[Message]) -> Result<(), HandlerError> {
        let mut tx = self.pool.begin().await.map_err(HandlerError::transient)?;
        let marked = self.inbox.mark_all_tx(&mut tx, if self.marks { messages } else { &[] }).await?;
        for (at, message) in messages.iter().enumerate() {
            if self.marks && !marked.is_fresh(at) {
                continue;
            }
            let n: u32 =
                String::from_utf8_lossy(message.payload()).parse().map_err(HandlerError::permanent)?;
            if self.poison && n.is_multiple_of(3) {
                return Err(HandlerError::permanent(format!("{n} is a multiple of three")));
            }
            let effect = sqlx::query("INSERT INTO effect (id, key, n) VALUES ($1, $2, $3::text::int)")
                .bind(message.delivery().header("semel-id"))
                .bind(&message.delivery().key)
                .bind(String::from_utf8_lossy(message.payload()).into_owned());
            effect.execute(&mut *tx).await.map_err(HandlerError::transient)?;
        }
        tokio::time::sleep(self.work).await;
        point(AFTER_HANDLED);
        marked.end_tx(&mut tx).await?;
        point(BEFORE_COMMIT);
        tx.commit().await.map_err(HandlerError::transient)?;
        point(AFTER_COMMIT);
        Ok(())
    }
}

/// What the table has to catch: messages are done for the broker before their effect is there.
struct Early<S>(S);

impl<S: Source> Source for Early<S> {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        let came = self.0.receive(most, wait).await?;
        let done: Vec<_> = came.iter().map(|delivery| (delivery.receipt, Settle::Ack)).collect();
        self.0.settle(&done).await?;
        Ok(came)
    }

    async fn settle(&mut self, _: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        Ok(())
    }

    async fn keep(&mut self, held: &[Receipt]) -> Result<(), SourceError> {
        self.0.keep(held).await
    }

    fn renew_after(&self) -> Duration {
        self.0.renew_after()
    }

    fn lost(&mut self) -> Vec<Receipt> {
        self.0.lost()
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        self.0.leave().await
    }
}

/// What the table has to catch: an ack of one message is taken for an ack of all before it.
struct Past<S> {
    source: S,
    given: Vec<Receipt>,
}

impl<S: Source> Source for Past<S> {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        let came = self.source.receive(most, wait).await?;
        self.given.extend(came.iter().map(|delivery| delivery.receipt));
        Ok(came)
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        let last =
            settled.iter().filter(|(_, settle)| *settle == Settle::Ack).map(|(receipt, _)| *receipt).max();
        let all: Vec<_> = self.given.extract_if(.., |receipt| Some(*receipt) <= last).collect();
        let done: Vec<_> = all.into_iter().map(|receipt| (receipt, Settle::Ack)).collect();
        self.source.settle(&done).await
    }

    async fn keep(&mut self, held: &[Receipt]) -> Result<(), SourceError> {
        self.source.keep(held).await
    }

    fn renew_after(&self) -> Duration {
        self.source.renew_after()
    }

    fn lost(&mut self) -> Vec<Receipt> {
        self.source.lost()
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        self.source.leave().await
    }
}

/// What the table has to catch: a dead letter that is written after its message was acked.
struct Late(PgPool);

impl DeadLetters for Late {
    async fn dead_letter(&self, consumer: &str, message: &DeadLetter<'_>) -> Result<(), HandlerError> {
        let letter = sqlx::query(
            "INSERT INTO semel_inbox_dead (id, consumer, source, topic, place, headers, payload, error, attempts, \
             first_failed_at, dead_at) VALUES (decode(md5($2), 'hex'), $1, $2, $2, $2, '[]', ''::bytea, $3, 1, 0, 0)",
        );
        let letter = letter.bind(consumer.to_owned()).bind(message.id.clone()).bind(message.error.to_owned());
        let pool = self.0.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(600)).await;
            letter.execute(&pool).await
        });
        Ok(())
    }
}
