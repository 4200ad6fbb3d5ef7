//! Finds the identity of the message in a delivery: the deduplication key.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::Delivery;
use crate::inbox::{ID_BYTES_MAX, Identity, IdentityError};
use crate::sink::headers;

/// How to find the id of a message in a delivery.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Identify {
    /// What semel's relay and CloudEvents write: the header `semel-id`, else `ce_id`, `ce-id` or `cloudEvents:id`, else
    /// `webhook-id`, `message-id` or `Nats-Msg-Id`. A CloudEvent's id that is not a UUID is combined with its source.
    #[default]
    ByEvent,
    /// This header.
    ByHeader(String),
    /// The string or number at this JSON pointer (RFC 6901) in the payload.
    ByPointer(String),
    /// The position in the broker. A message that was *published* twice counts as two, and one that was mirrored,
    /// restored or moved to another topic counts as another. Only for producers that cannot give messages an id.
    ByPlace,
    /// The result of this function.
    By(Arc<Closure>),
}

type Closure = dyn Fn(&Delivery) -> Option<String> + Send + Sync;

/// Headers that have the event's id, the most reliable first.
const EVENT_IDS: [&str; 7] =
    [headers::ID, "ce_id", "ce-id", "cloudEvents:id", "webhook-id", "message-id", "Nats-Msg-Id"];

/// Id and source attribute of CloudEvents, as each binding writes them.
const CLOUD_EVENTS: [(&str, &str); 3] =
    [("ce_id", "ce_source"), ("ce-id", "ce-source"), ("cloudEvents:id", "cloudEvents:source")];

impl fmt::Debug for Identify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByEvent => f.write_str("ByEvent"),
            Self::ByHeader(name) => write!(f, "ByHeader({name:?})"),
            Self::ByPointer(pointer) => write!(f, "ByPointer({pointer:?})"),
            Self::ByPlace => f.write_str("ByPlace"),
            Self::By(_) => f.write_str("By(…)"),
        }
    }
}

/// Why a delivery has no identity.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MissingIdentity {
    /// There is no id at the configured location.
    #[error(
        "the message has no id ({looked}); set `Identify` to where the id is, or have the producer write one"
    )]
    Missing {
        /// What was looked for and is not there.
        looked: String,
    },
    /// The id is invalid.
    #[error(transparent)]
    Bad(#[from] IdentityError),
}

impl Identify {
    /// Finds the id with a function.
    pub fn by(find: impl Fn(&Delivery) -> Option<String> + Send + Sync + 'static) -> Self {
        Self::By(Arc::new(find))
    }

    /// The identity of the delivered message.
    ///
    /// # Errors
    /// The message has no identity: it cannot be deduplicated, and must not be handled as if it could.
    pub fn identify(&self, delivery: &Delivery) -> Result<Identity, MissingIdentity> {
        self.identify_as(delivery, &delivery.from)
    }

    /// Like [`identify`](Identify::identify), with another source name. A message that is moved to a retry topic, or
    /// arrives through two queues, is the same message only under the same source name.
    ///
    /// # Errors
    /// As [`identify`](Identify::identify).
    pub fn identify_as(&self, delivery: &Delivery, source: &str) -> Result<Identity, MissingIdentity> {
        let (id, looked) = match self {
            Self::ByEvent => (event(delivery), "no header such as `semel-id` or `ce_id`".to_owned()),
            Self::ByHeader(name) => (delivery.header(name).map(str::to_owned), format!("no header {name:?}")),
            Self::ByPointer(pointer) => (at(pointer, &delivery.payload), format!("nothing at {pointer:?}")),
            Self::ByPlace => (Some(delivery.place.clone()), String::new()),
            Self::By(find) => (find(delivery), "nothing found".to_owned()),
        };
        let id = id.filter(|id| !id.is_empty()).ok_or(MissingIdentity::Missing { looked })?;
        let identity = Identity::new(source, &id)?;
        Ok(delivery.lineage.iter().fold(identity, |identity, lineage| identity.lineage(lineage)))
    }
}

/// The event's id. A CloudEvents id is unique only together with its source, unless it is a UUID.
fn event(delivery: &Delivery) -> Option<String> {
    let (name, id) = EVENT_IDS.iter().find_map(|name| Some((*name, delivery.header(name)?)))?;
    let source =
        CLOUD_EVENTS.iter().find(|(of, _)| *of == name).and_then(|(_, source)| delivery.header(source));
    Some(match source {
        Some(source) if !id.is_empty() && Uuid::try_parse(id).is_err() => {
            let both = format!("{}:{source}{id}", source.len());
            if both.len() <= ID_BYTES_MAX {
                both
            } else {
                format!("{:x}", Bytes::copy_from_slice(&Sha256::digest(both)))
            }
        }
        _ => id.to_owned(),
    })
}

fn at(pointer: &str, payload: &[u8]) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(payload).ok()?;
    match value.pointer(pointer)? {
        serde_json::Value::String(text) => Some(text.clone()),
        // A float may have been rounded: it is not the number the producer wrote.
        serde_json::Value::Number(number) if !number.is_f64() => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Receipt;

    fn delivery(headers: &[(&str, &str)], payload: &'static str) -> Delivery {
        let mut delivery = Delivery::new(Receipt(1), "payments", "0:42".into(), payload);
        delivery.headers = headers.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect();
        delivery
    }

    #[test]
    fn the_event_s_id_is_found_where_producers_put_it() {
        for (headers, wanted) in [
            (&[("ce_id", "b"), ("Semel-Id", "a")][..], "a"),
            (&[("ce_id", "b")], "b"),
            (&[("WEBHOOK-ID", "c")], "c"),
            (&[("ce_id", "7"), ("ce_source", "/orders")], "7:/orders7"),
            (&[("ce_id", "7"), ("ce_source", "/refunds")], "8:/refunds7"),
            (
                &[("ce_id", "018f4e1c-7a52-7c1e-9a53-2f2c6f0a1b2c"), ("ce_source", "/orders")],
                "018f4e1c-7a52-7c1e-9a53-2f2c6f0a1b2c",
            ),
        ] {
            let found = Identify::default().identify(&delivery(headers, "{}")).unwrap();
            assert_eq!((found.source(), found.id().as_str()), ("payments", wanted));
        }
        assert!(Identify::default().identify(&delivery(&[("semel-id", "")], "{}")).is_err());
    }

    #[test]
    fn other_places_of_an_id_work_and_a_missing_id_is_an_error() {
        let paid = delivery(&[("x-id", "9")], r#"{"id":7,"event":{"id":"e-1"}}"#);
        let id = |by: Identify| by.identify(&paid).map(|identity| identity.id());
        assert_eq!(id(Identify::ByHeader("X-Id".into())).unwrap(), "9");
        assert_eq!(id(Identify::ByPointer("/event/id".into())).unwrap(), "e-1");
        assert_eq!(id(Identify::ByPointer("/id".into())).unwrap(), "7");
        assert_eq!(id(Identify::ByPlace).unwrap(), "0:42");
        assert_eq!(
            id(Identify::by(|delivery| delivery.header("x-id").map(|id| format!("n{id}")))).unwrap(),
            "n9"
        );
        for missing in
            [Identify::ByEvent, Identify::ByPointer("/event".into()), Identify::ByHeader("y".into())]
        {
            let error = id(missing).unwrap_err().to_string();
            assert!(error.contains("has no id"), "{error}");
        }
    }
}
