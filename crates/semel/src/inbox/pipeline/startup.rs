//! Opening and closing wait for the broker, in threads of their own. A pipeline that is stopped does not wait for them,
//! nor does a runtime that shuts down, as it would for its own blocking threads.

use std::sync::Arc;
use std::thread;

use tokio::sync::oneshot;

use super::transaction::Engine;
use crate::broker::kafka::sink::KafkaOptions;
use crate::broker::kafka::source::{KafkaSourceOptions, shutdown};
use crate::sink::SinkError;

/// The engine, if it is open. When dropped, it is closed in another thread.
#[derive(Default)]
pub(super) struct Open(Option<Arc<Engine>>);

impl Open {
    pub(super) fn get(&self) -> Option<&Arc<Engine>> {
        self.0.as_ref()
    }

    /// Takes it out, to close it and wait for that.
    pub(super) fn take(&mut self) -> Option<Arc<Engine>> {
        self.0.take()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(engine) = self.0.take() {
            shutdown::on_own_thread(move || drop(engine));
        }
    }
}

/// Takes the transactional ids over and joins the group. If this future is dropped, the thread soon gives up, so that
/// it does not take the ids from a process that was started after this one stopped. It then closes the clients that it
/// has opened.
pub(super) async fn open(
    source: KafkaSourceOptions,
    sink: KafkaOptions,
    ids: [String; 2],
) -> Result<Open, SinkError> {
    let (sender, opened) = oneshot::channel();
    let work = move || {
        let engine = Engine::open(&source, &sink, &ids, || !sender.is_closed());
        // If no one receives it, it is dropped here.
        drop(sender.send(engine.map(|engine| Open(Some(Arc::new(engine))))));
    };
    let thread = thread::Builder::new().name("semel-kafka-begin".to_owned()).spawn(work);
    thread
        .map_err(|error| SinkError::not_published(format!("cannot start a thread to open Kafka: {error}")))?;
    opened.await.map_err(|_| SinkError::not_published("the thread that opens Kafka panicked"))?
}
