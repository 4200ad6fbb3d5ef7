//! The events of a batch to park, column by column.

use std::sync::Arc;

use crate::outbox::Event;
use crate::relay::outbox_reader::{Pending, Settled};
use crate::relay::parking::parked_key;

#[derive(Default)]
pub(super) struct ParkedRows {
    pub(super) errors: Vec<Option<String>>,
    /// The parked key of each.
    pub(super) keys: Vec<String>,
    pub(super) for_good: Vec<bool>,
    pub(super) made_at: Vec<Option<String>>,
    pub(super) ids: Vec<String>,
    /// Topic, type, key, aggregate's type and id, content type, headers, idempotency key, trace.
    pub(super) texts: [Vec<Option<String>>; 9],
    pub(super) intents: Vec<Option<Vec<u8>>>,
    pub(super) payloads: Vec<Vec<u8>>,
}

impl ParkedRows {
    pub(super) fn of(events: &[Pending], made_at: &[Option<String>], settled: &[Settled]) -> Self {
        let mut rows = Self::default();
        // A missing result counts as in doubt: the event is held, not dropped.
        let results = settled.iter().chain(std::iter::repeat(&Settled::Held));
        for (at, (pending, settled)) in events.iter().zip(results).enumerate() {
            let (error, alone, for_good) = match settled {
                Settled::Confirmed => continue,
                Settled::Held => (None, false, false),
                Settled::Parked { error, alone, for_good } => (Some(error.clone()), *alone, *for_good),
            };
            rows.errors.push(error);
            rows.keys.push(parked_key(&pending.event, alone));
            rows.for_good.push(for_good);
            rows.made_at.push(made_at.get(at).cloned().flatten());
            rows.push(&pending.event);
        }
        rows
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    fn push(&mut self, event: &Arc<Event>) {
        let subject = event.subject();
        let headers: serde_json::Map<String, serde_json::Value> =
            event.headers().map(|(name, text)| (name.to_owned(), text.into())).collect();
        let texts = [
            Some(event.topic().to_owned()),
            Some(event.kind().to_owned()),
            event.key.clone(),
            subject.map(|(kind, _)| kind.to_owned()),
            subject.map(|(_, id)| id.to_owned()),
            Some(event.media_type().to_owned()),
            (!headers.is_empty()).then(|| serde_json::Value::Object(headers).to_string()),
            event.idempotency_key.as_ref().map(|key| key.as_str().to_owned()),
            event.trace().map(str::to_owned),
        ];
        for (column, text) in self.texts.iter_mut().zip(texts) {
            column.push(text);
        }
        self.ids.push(event.id().to_string());
        self.intents.push(event.intent().map(|intent| intent.as_bytes().to_vec()));
        self.payloads.push(event.payload().to_vec());
    }
}

/// The key that holds this event back while it is parked.
pub(super) fn held_by(event: &Event) -> String {
    parked_key(event, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_confirmed_is_set_aside_whole() {
        let event = |text: &'static str| {
            Pending::new(Event::new("t", "made", text).unwrap().key("k").unwrap().header("a", "b").unwrap())
        };
        let events = [event("1"), event("2"), event("3")];
        let parked = Settled::Parked { error: "no".into(), for_good: true, alone: false };
        let rows = ParkedRows::of(&events, &[None, Some("now".into())], &[Settled::Confirmed, parked]);
        assert_eq!(rows.ids, [events[1].event.id().to_string(), events[2].event.id().to_string()]);
        assert_eq!(rows.errors, [Some("no".to_owned()), None]);
        assert_eq!(rows.made_at, [Some("now".to_owned()), None]);
        assert_eq!(rows.texts[2], [Some("k".to_owned()), Some("k".to_owned())]);
        assert_eq!(rows.texts[6][0].as_deref(), Some(r#"{"a":"b"}"#));
        assert_eq!(rows.payloads, [b"2".to_vec(), b"3".to_vec()]);
        assert!(ParkedRows::of(&events[..1], &[], &[Settled::Confirmed]).is_empty());
    }
}
