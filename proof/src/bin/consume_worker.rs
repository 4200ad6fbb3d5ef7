//! A consumer for killing: from Kafka into a table in PostgreSQL, until SIGTERM.
//!
//! `consume_worker BROKERS GROUP TOPIC POSTGRES_URL SCHEMA HOW MEMBER`. HOW is `right`, or `dead` (each third
//! message of a key cannot be handled and becomes a letter), or `mended` (as `dead`, and all can be), or one of the known mistakes
//! `early`, `by-place`, `late-letter` and `unmarked`. MEMBER is a static member's name or `-`. It stops at the points of [`semel::crash`]; those after the handling and around the commit are its own.

use std::process::ExitCode;
use std::time::Duration;

use semel::crash::{AFTER_COMMIT, AFTER_HANDLED, BEFORE_COMMIT, point};
use semel::inbox::Inbox;
use semel::inbox::consumer::{Buried, Consumer, ConsumerOptions, DeadLetters, Failed, Handler, Message};
use semel::inbox::dead::InboxTables;
use semel::source::kafka::KafkaSource;
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
    let [brokers, group, topic, url, schema, how, member] = args else {
        return Err("usage: consume_worker BROKERS GROUP TOPIC POSTGRES_URL SCHEMA HOW MEMBER".into());
    };
    let options: PgConnectOptions = url.parse()?;
    let options = options.options([("search_path", *schema)]);
    let pool = PgPoolOptions::new().max_connections(4).connect_with(options).await?;
    let handler = Table {
        pool: pool.clone(),
        inbox: Inbox::new("judged")?,
        poison: matches!(*how, "dead" | "late-letter"),
        marks: *how != "unmarked",
    };
    let mut source = KafkaSource::options(brokers, group).topics(&[*topic]).session(Duration::from_secs(6));
    if *member != "-" {
        source = source.set("group.instance.id", member)?;
    }
    let identify = if *how == "by-place" { Identify::ByPlace } else { Identify::ByEvent };
    let options = ConsumerOptions::default()
        .identify(identify)
        .held_max(120)
        .batch_max(20)
        .concurrency(3)
        .pause(Duration::from_millis(20), Duration::from_secs(1));
    match *how {
        "early" => run(Consumer::new("judged", Early(source.open()?), handler, options)).await,
        "dead" | "mended" | "unmarked" => {
            // A letter that a killed one has taken is another's soon.
            let options =
                options.handle_timeout(Duration::from_secs(3)).letters_every(Duration::from_millis(100));
            let tables = InboxTables::open(&format!("{url}?schema={schema}")).await?;
            run(Consumer::new("judged", source.open()?, handler, options).dead_letters(tables)).await
        }
        "late-letter" => {
            run(Consumer::new("judged", source.open()?, handler, options).dead_letters(Late(pool))).await
        }
        _ => run(Consumer::new("judged", source.open()?, handler, options)).await,
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
    /// Each third message of a key cannot be handled.
    poison: bool,
    marks: bool,
}

impl Handler for Table {
    async fn handle(&self, messages: &[Message]) -> Result<(), Failed> {
        let mut tx = self.pool.begin().await.map_err(Failed::later)?;
        let marked = self.inbox.mark_all_tx(&mut tx, if self.marks { messages } else { &[] }).await?;
        for (at, message) in messages.iter().enumerate() {
            if self.marks && !marked.is_fresh(at) {
                continue;
            }
            let n: u32 = String::from_utf8_lossy(message.payload()).parse().map_err(Failed::poison)?;
            if self.poison && n.is_multiple_of(3) {
                return Err(Failed::poison(format!("{n} is a multiple of three")));
            }
            let effect = sqlx::query("INSERT INTO effect (id, key, n) VALUES ($1, $2, $3::text::int)")
                .bind(message.delivery().header("semel-id"))
                .bind(&message.delivery().key)
                .bind(String::from_utf8_lossy(message.payload()).into_owned());
            effect.execute(&mut *tx).await.map_err(Failed::later)?;
        }
        point(AFTER_HANDLED);
        marked.end_tx(&mut tx).await?;
        point(BEFORE_COMMIT);
        tx.commit().await.map_err(Failed::later)?;
        point(AFTER_COMMIT);
        Ok(())
    }
}

/// What the table has to catch: messages are done for the broker before their effect is there.
struct Early(KafkaSource);

impl Source for Early {
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

/// What the table has to catch: a letter that is written after the broker was told.
struct Late(PgPool);

impl DeadLetters for Late {
    async fn bury(&self, consumer: &str, message: &Buried<'_>) -> Result<(), Failed> {
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
