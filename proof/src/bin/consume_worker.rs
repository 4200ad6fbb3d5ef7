//! A consumer for killing: from a broker into a table in PostgreSQL, until SIGTERM.
//!
//! `consume_worker BROKER URL QUEUE POSTGRES_URL SCHEMA right|early|by-place|slow MEMBER`, where BROKER is `kafka` or `nats`, QUEUE is the
//! name of the queue and of the group, and MEMBER is a name among those of the group, or `-`. It stops at the points of [`semel::crash`]; those after the handling and around the commit are its own.

use std::process::ExitCode;
use std::time::Duration;

use semel::crash::{AFTER_COMMIT, AFTER_HANDLED, BEFORE_COMMIT, point};
use semel::inbox::Inbox;
use semel::inbox::consumer::{Consumer, ConsumerOptions, Failed, Handler, Message};
use semel::source::kafka::KafkaSource;
use semel::source::nats::NatsSource;
use semel::source::{Delivery, Identify, Receipt, Settle, Source, SourceError};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use tokio::signal::unix::{SignalKind, signal};

type Wrong = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match consume(&args).await {
        Ok(told) => {
            println!("{told}");
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
        return Err("usage: consume_worker BROKER URL QUEUE POSTGRES_URL SCHEMA HOW MEMBER".into());
    };
    let options: PgConnectOptions = postgres.parse()?;
    let options = options.options([("search_path", *schema)]);
    let pool = PgPoolOptions::new().max_connections(4).connect_with(options).await?;
    // Longer than any lease here.
    let work = if *how == "slow" { Duration::from_secs(7) } else { Duration::ZERO };
    let table = Table { pool, inbox: Inbox::new("judged")?, work };
    match *broker {
        "kafka" => {
            let mut source =
                KafkaSource::options(url, queue).topics(&[*queue]).session(Duration::from_secs(6));
            if *member != "-" {
                source = source.set("group.instance.id", member)?;
            }
            Box::pin(bring(source.open()?, table, how)).await
        }
        "nats" => {
            let source = NatsSource::options(url, queue, queue).ack_wait(Duration::from_secs(2));
            Box::pin(bring(source.open()?, table, how)).await
        }
        _ => Err(format!("there is no source for {broker}").into()),
    }
}

async fn bring<S: Source>(source: S, table: Table, how: &str) -> Result<String, Wrong> {
    let identify = if how == "by-place" { Identify::ByPlace } else { Identify::ByEvent };
    let options = ConsumerOptions::default()
        .identify(identify)
        .held_max(120)
        .batch_max(20)
        .concurrency(3)
        .pause(Duration::from_millis(20), Duration::from_secs(1));
    if how == "early" {
        run(Consumer::new("judged", Early(source), table, options)).await
    } else {
        run(Consumer::new("judged", source, table, options)).await
    }
}

async fn run<S: Source>(consumer: Consumer<S, Table>) -> Result<String, Wrong> {
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
}

impl Handler for Table {
    async fn handle(&self, messages: &[Message]) -> Result<(), Failed> {
        let mut tx = self.pool.begin().await.map_err(Failed::later)?;
        let marked = self.inbox.mark_all_tx(&mut tx, messages).await?;
        for message in marked.fresh().map(|at| &messages[at]) {
            let effect = sqlx::query("INSERT INTO effect (id, key, n) VALUES ($1, $2, $3::text::int)")
                .bind(message.delivery().header("semel-id"))
                .bind(&message.delivery().key)
                .bind(String::from_utf8_lossy(message.payload()).into_owned());
            effect.execute(&mut *tx).await.map_err(Failed::later)?;
        }
        tokio::time::sleep(self.work).await;
        point(AFTER_HANDLED);
        marked.end_tx(&mut tx).await?;
        point(BEFORE_COMMIT);
        tx.commit().await.map_err(Failed::later)?;
        point(AFTER_COMMIT);
        Ok(())
    }
}

/// What the table has to catch: messages are done for the broker before their effect is there.
struct Early<S>(S);

impl<S: Source> Source for Early<S> {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        let came = self.0.receive(most, wait).await?;
        let done: Vec<_> = came.iter().map(|delivery| (delivery.receipt, Settle::Done)).collect();
        self.0.settle(&done).await?;
        Ok(came)
    }

    async fn settle(&mut self, _: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        Ok(())
    }

    async fn keep(&mut self, held: &[Receipt]) -> Result<(), SourceError> {
        self.0.keep(held).await
    }

    fn keep_in(&self) -> Duration {
        self.0.keep_in()
    }

    fn lost(&mut self) -> Vec<Receipt> {
        self.0.lost()
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        self.0.leave().await
    }
}
