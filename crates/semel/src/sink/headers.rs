//! The headers that an event carries, with the same names for every broker.

use crate::outbox::Event;

/// The event's id: the same however often it is published.
pub const ID: &str = "semel-id";
/// The event's type.
pub const KIND: &str = "semel-type";
/// The intent that caused it, as 64 hexadecimal digits.
pub const INTENT: &str = "semel-intent";
/// The aggregate's type.
pub const AGGREGATE_TYPE: &str = "semel-aggregate-type";
/// The aggregate's id.
pub const AGGREGATE_ID: &str = "semel-aggregate-id";
/// The topic, queue or stream that a forwarded message came from.
pub const SOURCE: &str = "semel-source";
/// The key that the event is ordered by, if the broker has no field for it.
pub const KEY: &str = "semel-key";
/// Attempt number of a forwarded message, starting at 1.
pub const ATTEMPT: &str = "semel-attempt";
/// The W3C trace context of the transaction that appended the event.
pub const TRACE_PARENT: &str = "traceparent";
/// The payload's content type.
pub const CONTENT_TYPE: &str = "content-type";

/// How semel's own headers are written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Style {
    /// `semel-id`, `semel-type` and so on.
    #[default]
    Plain,
    /// As [`Plain`](Style::Plain), plus the attributes of CloudEvents 1.0 in binary mode.
    CloudEvents {
        /// CloudEvents' `source`: the producer of the event, as a URI reference.
        source: String,
    },
}

/// The headers of one event: semel's own first, then the event's in their order.
///
/// If an event's header has the name of one of semel's, semel's wins; also `semel-key`, which some sinks add. `ce` is
/// the prefix of CloudEvents' attributes in the protocol: `ce_` in Kafka, `ce-` in HTTP and NATS.
///
/// ```
/// use semel::outbox::Event;
/// use semel::sink::headers::{self, Style};
///
/// let event = Event::new("payments", "payment.completed", "{}")?.header("region", "eu")?;
/// let headers = headers::of(&event, &Style::Plain, "ce_");
/// assert!(headers.contains(&("semel-type".into(), "payment.completed".into())));
/// assert!(headers.contains(&("region".into(), "eu".into())));
/// # Ok::<(), semel::outbox::EventError>(())
/// ```
#[must_use]
pub fn of(event: &Event, style: &Style, ce: &str) -> Vec<(String, String)> {
    let mut all = Vec::with_capacity(12);
    let mut put = |name: &str, text: String| all.push((name.to_owned(), text));
    put(ID, event.id().to_string());
    put(KIND, event.kind().to_owned());
    put(CONTENT_TYPE, event.media_type().to_owned());
    if let Some(intent) = event.intent() {
        put(INTENT, intent.to_string());
    }
    if let Some(trace) = event.trace() {
        put(TRACE_PARENT, trace.to_owned());
    }
    if let Some((kind, id)) = event.subject() {
        put(AGGREGATE_TYPE, kind.to_owned());
        put(AGGREGATE_ID, id.to_owned());
    }
    if let Style::CloudEvents { source } = style {
        let mut attribute = |name: &str, text: String| all.push((format!("{ce}{name}"), text));
        attribute("specversion", "1.0".to_owned());
        attribute("id", event.id().to_string());
        attribute("source", source.clone());
        attribute("type", event.kind().to_owned());
        if let Some((kind, id)) = event.subject() {
            attribute("subject", format!("{kind}/{id}"));
        }
        if let Some(key) = event.ordered_by() {
            attribute("partitionkey", key.to_owned());
        }
        if let Some(trace) = event.trace() {
            attribute("traceparent", trace.to_owned());
        }
    }
    let ours = all.len();
    for (name, text) in event.headers() {
        let is_ours = |there: &str| there.eq_ignore_ascii_case(name);
        if !is_ours(KEY) && !all[..ours].iter().any(|(there, _)| is_ours(there)) {
            all.push((name.to_owned(), text.to_owned()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
        headers.iter().find(|(there, _)| there == name).map(|(_, text)| text.as_str())
    }

    #[test]
    fn an_event_cannot_pass_for_another_by_its_headers() {
        let event = Event::new("t", "k", "{}").unwrap().header("Content-Type", "text/html").unwrap();
        let headers = of(&event, &Style::Plain, "ce_");
        assert_eq!(value(&headers, CONTENT_TYPE), Some("application/json"));
        assert_eq!(value(&headers, "Content-Type"), None);
        // As a service in another language may insert it.
        let mut event = event;
        event.headers.push((KEY.to_owned(), "another".to_owned()));
        assert_eq!(value(&of(&event, &Style::Plain, "ce_"), KEY), None);
    }

    #[test]
    fn cloud_events_have_what_they_require() {
        let event = Event::new("t", "k", "{}").unwrap().aggregate("payment", "7").unwrap();
        let style = Style::CloudEvents { source: "/payments".to_owned() };
        let headers = of(&event, &style, "ce_");
        assert_eq!(value(&headers, "ce_specversion"), Some("1.0"));
        assert_eq!(value(&headers, "ce_id"), Some(event.id().to_string().as_str()));
        assert_eq!(value(&headers, "ce_source"), Some("/payments"));
        assert_eq!(value(&headers, "ce_type"), Some("k"));
        assert_eq!(value(&headers, "ce_subject"), Some("payment/7"));
        assert_eq!(value(&headers, "ce_partitionkey"), Some("7"));
        assert_eq!(value(&of(&event, &Style::Plain, "ce_"), "ce_id"), None);
    }
}
