//! Beginning and ending wait for the broker, on threads of their own: whoever is asked to stop does not wait for these, nor
//! does a runtime that shuts down, as it would for its own blocking threads.

use std::sync::Arc;
use std::thread;

use tokio::sync::oneshot;

use super::transaction::Engine;
use crate::sink::SinkError;
use crate::sink::kafka::KafkaOptions;
use crate::source::kafka::{KafkaSourceOptions, shutdown};

/// What there is to work with, if it is open. Dropped, it is closed elsewhere.
#[derive(Default)]
pub(super) struct Open(Option<Arc<Engine>>);

impl Open {
    pub(super) fn get(&self) -> Option<&Arc<Engine>> {
        self.0.as_ref()
    }

    /// For who closes it and waits for that.
    pub(super) fn take(&mut self) -> Option<Arc<Engine>> {
        self.0.take()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(engine) = self.0.take() {
            shutdown::aside(move || drop(engine));
        }
    }
}

/// Takes the transactional ids over and joins the group. When this is dropped, the thread soon gives up: it must not take
/// the ids from a process that was started after this one had stopped. What it has opened by then it closes, unused.
pub(super) async fn open(
    source: KafkaSourceOptions,
    sink: KafkaOptions,
    ids: [String; 2],
) -> Result<Open, SinkError> {
    let (tells, opened) = oneshot::channel();
    let work = move || {
        let engine = Engine::open(&source, &sink, &ids, || !tells.is_closed());
        // To nobody: then it is dropped here.
        drop(tells.send(engine.map(|engine| Open(Some(Arc::new(engine))))));
    };
    let thread = thread::Builder::new().name("semel-kafka-begin".to_owned()).spawn(work);
    thread.map_err(|error| SinkError::not_published(format!("no thread to begin with: {error}")))?;
    opened.await.map_err(|_| SinkError::not_published("beginning broke off"))?
}
