//! A tracing subscriber that captures spans and events as text.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Captures every span and event of semel.
#[derive(Clone, Default)]
pub struct CapturedLog(Arc<Mutex<String>>);

impl CapturedLog {
    /// What was captured since the last call.
    pub fn take(&self) -> String {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    fn note(&self, what: &str, record: impl FnOnce(&mut dyn Visit)) {
        struct Fields<'a>(&'a mut String);
        impl Visit for Fields<'_> {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                let _ = write!(self.0, " {}={value:?}", field.name());
            }
        }
        let mut log = self.0.lock().unwrap();
        log.push_str(what);
        record(&mut Fields(&mut log));
        log.push('\n');
    }
}

impl Subscriber for CapturedLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("semel")
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.note(span.metadata().name(), |visit| span.record(visit));
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, values: &Record<'_>) {
        self.note("recorded", |visit| values.record(visit));
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        self.note("event", |visit| event.record(visit));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
