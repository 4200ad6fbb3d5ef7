//! Kafka to Kafka, exactly once (consume-transform-produce).
//!
//! ```text
//!  input topics ─▶ your transform ─▶ ┌ outputs, several topics ┐
//!                                    └ offsets of the inputs   ┘ one Kafka transaction
//! ```
//!
//! **It covers only Kafka.** A row in a database, a mail or a call that the transform makes is outside Kafka's
//! transaction, and happens again when a batch is retried. For rows, mark the messages in the
//! [inbox](crate::inbox::Inbox), in the transaction of the rows, and return the outputs of *all* messages, also of
//! duplicates: their rows are stored, but it is not known whether their outputs were committed.
//!
//! ```no_run
//! # #[cfg(feature = "sqlx-postgres")] {
//! use semel::inbox::Inbox;
//! use semel::inbox::consumer::HandlerError;
//! use semel::inbox::pipeline::{Input, Output, Transform};
//! use semel::source::Identify;
//!
//! struct Invoices {
//!     pool: sqlx::PgPool,
//!     inbox: Inbox,
//! }
//!
//! impl Transform for Invoices {
//!     async fn transform(&self, inputs: Vec<Input>) -> Result<Vec<Output>, HandlerError> {
//!         let named: Result<Vec<_>, _> = inputs.iter().map(|input| input.named(&Identify::ByEvent)).collect();
//!         let named = named.map_err(HandlerError::permanent)?;
//!         let mut tx = self.pool.begin().await.map_err(HandlerError::transient)?;
//!         let marked = self.inbox.mark_all_tx(&mut tx, &named).await?;
//!         for at in marked.fresh() {
//!             let row = sqlx::query("INSERT INTO invoice (body) VALUES ($1)").bind(named[at].payload());
//!             row.execute(&mut *tx).await.map_err(HandlerError::retry)?;
//!         }
//!         marked.end_tx(&mut tx).await?;
//!         tx.commit().await.map_err(HandlerError::transient)?;
//!         // For all messages, fresh or not.
//!         Ok(inputs.iter().map(|input| Output::like(input, "invoices")).collect())
//!     }
//! }
//! # }
//! ```
//!
//! If only Kafka is involved, a function is enough:
//!
//! ```no_run
//! # async fn f() -> Result<(), semel::inbox::pipeline::PipelineError> {
//! use semel::inbox::consumer::HandlerError;
//! use semel::inbox::pipeline::{Input, Output, Pipeline, PipelineOptions};
//! use semel::sink::kafka::KafkaSink;
//! use semel::source::kafka::KafkaSource;
//!
//! let source = KafkaSource::options("127.0.0.1:9092", "invoices").topics(&["orders"]);
//! let sink = KafkaSink::options("127.0.0.1:9092");
//! let transform = async |inputs: Vec<Input>| {
//!     let invoices = inputs.iter().map(|input| Output::like(input, "invoices"));
//!     let copies = inputs.iter().map(|input| Output::like(input, "archive"));
//!     Ok::<_, HandlerError>(invoices.chain(copies).collect::<Vec<_>>())
//! };
//! let options = PipelineOptions::default().instance("invoices-0").dead_letters("invoices-dead");
//! Pipeline::new(source, sink, transform, options)?.run().await?;
//! # Ok(()) }
//! ```
//!
//! **Exactly once** holds for readers with `isolation.level=read_committed`; others also see aborted messages. It is by
//! offset: an input that was published twice is two inputs.
//!
//! **Zombies.** The offsets are committed as a member of the group in its generation. A process that stalled while its
//! partitions went to another one is fenced by the broker, and its transaction is aborted.
//!
//! **Rebalances.** If a partition is revoked during the transform, its messages are dropped and the rest of the batch
//! is retried. If a transaction is open, the broker decides: it refuses offsets of a former generation, and gives the
//! committed offset of a partition to no one while it is in an open transaction.
//!
//! **In doubt** (the connection was lost during a commit) everything starts over: taking the transactional ids over
//! ends the open transaction, either way, and the committed offsets say where to continue.
//!
//! | module | what it decides |
//! |---|---|
//! | `run` | the loop: fill the buffer, transform, commit |
//! | `transform` | the trait: from inputs to outputs |
//! | `transaction` | outputs and offsets in one Kafka transaction |
//! | `adaptive_batch` | how many messages are tried at once, and which is the poison message (bisect) |
//! | `buffer` | messages received and not yet committed |
//! | `reader` | the librdkafka consumer, which never commits |
//! | `message` | inputs, outputs and dead letters |
//! | `startup` | opens and closes in threads of their own |
//! | `options` | the bounds |

mod adaptive_batch;
mod buffer;
mod message;
mod options;
mod reader;
mod run;
mod startup;
mod transaction;
mod transform;

pub use message::{DEAD_ERROR, DEAD_PLACE, Input, Output};
pub use options::PipelineOptions;
pub use run::{OUTPUTS_MAX, Pipeline, PipelineError, PipelineStats};
pub use transform::Transform;
