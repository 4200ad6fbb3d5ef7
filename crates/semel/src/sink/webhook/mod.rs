//! Webhooks: each event a signed POST, as [Standard Webhooks](https://www.standardwebhooks.com) has it.
//!
//! | in the request | from the event |
//! |---|---|
//! | body | its payload |
//! | `webhook-id`, `Idempotency-Key` | its id, the same however often it is sent |
//! | `webhook-timestamp`, `webhook-signature` | when it was sent, and the proof of who sent it |
//! | other headers | as everywhere, see [`headers`] |
//!
//! | answer | means |
//! |---|---|
//! | 2xx | confirmed |
//! | 400, 410, 413, 415, 422 | refused |
//! | anything else, or none | tried again; redirects are not followed |
//!
//! **Order.** At most one event of a key is unanswered; keys do not wait for each other. Each topic has its endpoint.
//!
//! **An endpoint that is away** does not hold up the others for long: after three different events without any answer nothing is sent
//! to it for a second and then ever longer, up to a minute, and after that one event tries it. Its events are parked when it is
//! still away then (at once where it lets others wait instead of refusing them), if another endpoint can be reached. If none
//! can it may be the network, and they wait.
//!
//! **Where it may go.** Every address is looked at when it is connected to: this machine, private networks and the
//! addresses at which clouds keep a machine's secrets are not connected to unless [allowed](WebhookOptions::allow_private).
//! `https://` is believed where an authority of the system's, or one of [`trust`](WebhookOptions::trust), vouches for it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::Full;
use rustls::RootCertStore;
use tokio::time::Instant;

use self::circuit_breaker::{EndpointBreaker, OpenState};
use self::signature::sign;
use super::headers::{self, Style};
use super::key_queues::KeyQueues;
use super::publish_results::PublishResults;
use super::{DeliverySemantics, Guarantee, Published, Sink, SinkError};
use crate::http_post::{self, Poster, Says, Sent, is_ours};
use crate::outbox::Event;
use crate::signature::Secret;
use crate::tls_roots;

mod circuit_breaker;
mod signature;

/// Endpoints that are connected to at once when they are asked.
const DIALS_MAX: usize = 16;
/// How long one of them may take to connect then.
const DIAL_MAX: Duration = Duration::from_secs(4);
/// How long it is believed that others can be reached, or cannot.
const REACHED_FOR: Duration = Duration::from_secs(1);

/// Where and how to publish. See [`WebhookSink::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct WebhookOptions {
    endpoints: HashMap<String, Endpoint>,
    any: Option<Endpoint>,
    allow_private: bool,
    trust: Option<RootCertStore>,
    concurrency: usize,
    style: Style,
    attempt: Duration,
    timeout: Duration,
}

#[derive(Clone, Debug)]
struct Endpoint {
    uri: Uri,
    secret: Secret,
}

impl Endpoint {
    fn new(url: &str, secret: &str) -> Result<Self, SinkError> {
        let bad = |why: &str| SinkError::not_published(format!("{url:?} is no webhook's address: {why}"));
        let uri = http_post::endpoint(url).map_err(bad)?;
        let secret = Secret::standard(secret).map_err(SinkError::not_published)?;
        Ok(Self { uri, secret })
    }
}

impl WebhookOptions {
    /// Events of this topic go there, signed with this secret (`whsec_…`).
    ///
    /// # Errors
    /// When it is no address or no secret.
    pub fn endpoint(mut self, topic: &str, url: &str, secret: &str) -> Result<Self, SinkError> {
        self.endpoints.insert(topic.to_owned(), Endpoint::new(url, secret)?);
        Ok(self)
    }

    /// Events of all other topics go there. Without one they are refused.
    ///
    /// # Errors
    /// When it is no address or no secret.
    pub fn any_topic(mut self, url: &str, secret: &str) -> Result<Self, SinkError> {
        self.any = Some(Endpoint::new(url, secret)?);
        Ok(self)
    }

    /// Also connects to this machine and to private networks. Only where nobody else names the endpoints.
    pub fn allow_private(mut self) -> Self {
        self.allow_private = true;
        self
    }

    /// Believes the authorities of this PEM file instead of the system's.
    ///
    /// # Errors
    /// When there is no certificate in it, or something else.
    pub fn trust(mut self, pem: &[u8]) -> Result<Self, SinkError> {
        let bad = |why| SinkError::not_published(format!("not a PEM file of certificate authorities: {why}"));
        self.trust = Some(tls_roots::of_pem(pem).map_err(bad)?);
        Ok(self)
    }

    /// Requests under way at once: 8.
    pub fn concurrency(mut self, requests: usize) -> Self {
        self.concurrency = requests.clamp(1, 256);
        self
    }

    /// Also the attributes of CloudEvents in binary mode, told by this source (a URI reference).
    pub fn cloud_events(mut self, source: &str) -> Self {
        self.style = Style::CloudEvents { source: source.to_owned() };
        self
    }

    /// The longest that a receiver may take to answer: 10 s.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt = timeout.max(Duration::from_millis(50));
        self
    }

    /// The longest that one call takes: 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.max(Duration::from_millis(100));
        self
    }

    /// A sink. A call has time for two attempts at least, else nobody could be found to be away.
    pub fn open(mut self) -> WebhookSink {
        self.timeout = self.timeout.max(self.attempt * 2);
        let endpoints = self.endpoints.values().chain(&self.any).map(|endpoint| &endpoint.uri);
        let poster = Poster::new(endpoints, self.allow_private, self.attempt, self.trust.as_ref());
        let violations = poster.violations().into_iter().collect();
        WebhookSink {
            options: self,
            poster,
            away: Mutex::default(),
            others: tokio::sync::Mutex::default(),
            violations,
        }
    }
}

/// Publishes to webhooks at least once.
///
/// ```
/// use semel::sink::webhook::WebhookSink;
///
/// let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// let sink = WebhookSink::options().endpoint("payments", "https://hooks.example.com/in", secret)?.open();
/// # drop(sink); Ok::<(), semel::sink::SinkError>(())
/// ```
pub struct WebhookSink {
    options: WebhookOptions,
    poster: Poster,
    /// By endpoint.
    away: Mutex<HashMap<Uri, EndpointBreaker>>,
    /// Which endpoints could be reached when that was last looked at.
    others: tokio::sync::Mutex<Option<(Instant, HashSet<Uri>)>>,
    violations: Vec<String>,
}

impl WebhookSink {
    /// A sink without endpoints.
    pub fn options() -> WebhookOptions {
        WebhookOptions {
            endpoints: HashMap::new(),
            any: None,
            allow_private: false,
            trust: None,
            concurrency: 8,
            style: Style::Plain,
            attempt: Duration::from_secs(10),
            timeout: Duration::from_secs(30),
        }
    }

    async fn send(&self, event: &Event, until: Instant) -> Published {
        let endpoint = self.options.endpoints.get(event.topic()).or(self.options.any.as_ref());
        let Some(endpoint) = endpoint else {
            let told = format!("no endpoint is configured for the topic {:?}", event.topic());
            return Published::Refused(SinkError::not_published(told));
        };
        let request = match request(event, endpoint, &self.options.style) {
            Ok(request) => request,
            Err(error) => return Published::Refused(error),
        };
        let uri = &endpoint.uri;
        let begun = Instant::now();
        if begun >= until {
            return Published::Failed(SinkError::not_tried("there was no time left to send it"));
        }
        let attempt = self.options.attempt;
        if let Some(alone) = self.about(uri, |away| away.left_alone(begun, attempt)) {
            let told = format!("{uri} did not answer; it is tried again in {} s", alone.left.as_secs() + 1);
            let parks = alone.for_long && self.others_are_there(uri, &alone).await;
            return Published::Failed(match parks {
                true => SinkError::not_published(told).destination_down(),
                false => SinkError::not_tried(told),
            });
        }
        let sent = self.poster.send(request, Some(until)).await;
        let now = Instant::now();
        self.about(uri, |away| match sent {
            Sent::Answered(_) => away.answered(now),
            // It was not given the time it may take.
            Sent::TimedOut if begun + attempt > until => {}
            _ => away.was_silent(event.id(), begun, now, attempt),
        });
        match sent {
            Sent::Answered(answer) if answer.is_in_progress() => Published::Failed(
                SinkError::maybe_published(format!("{uri} answered {}: it is still at it", answer.status)),
            ),
            Sent::Answered(answer) => judge(answer.status, uri),
            Sent::TimedOut => {
                Published::Failed(SinkError::maybe_published(format!("{uri} did not answer in time")))
            }
            Sent::NotReached(why) => {
                Published::Failed(SinkError::not_published(format!("{uri} could not be reached: {why}")))
            }
            Sent::Lost(why) => {
                Published::Failed(SinkError::maybe_published(format!("{uri} could not be reached: {why}")))
            }
        }
    }
}

impl WebhookSink {
    fn endpoints(&self) -> impl Iterator<Item = &Uri> {
        self.options.endpoints.values().chain(&self.options.any).map(|endpoint| &endpoint.uri)
    }

    /// Whether another one has answered since this one fell silent, or can at least be connected to: nobody may have sent
    /// anything there since. Else it may be the network rather than one of them.
    async fn others_are_there(&self, uri: &Uri, alone: &OpenState) -> bool {
        let has_answered = |away: &HashMap<Uri, EndpointBreaker>| {
            away.iter().any(|(other, away)| other != uri && away.has_answered_since(alone.since))
        };
        if has_answered(&self.away.lock().unwrap_or_else(PoisonError::into_inner)) {
            return true;
        }
        // One looks, and the others have what it found.
        let mut others = self.others.lock().await;
        let there = match others.take().filter(|(at, _)| at.elapsed() < REACHED_FOR) {
            Some(known) => known,
            None => {
                // Not those that are known to be away.
                let asked = self.endpoints().filter(|uri| !self.about(uri, |away| away.is_away()));
                let dialled = self.dial(asked.cloned().collect()).await.into_iter();
                let reached = dialled.filter_map(|(reached, uri)| reached.is_ok().then_some(uri));
                (Instant::now(), reached.collect())
            }
        };
        let found = there.1.iter().any(|other| other != uri);
        *others = Some(there);
        found
    }

    /// Connects to each of these and says nothing there.
    async fn dial(&self, endpoints: HashSet<Uri>) -> Vec<(std::io::Result<()>, Uri)> {
        let dials = endpoints.into_iter().map(|uri| async move {
            let reached = tokio::time::timeout(DIAL_MAX, self.poster.reach(&uri)).await;
            (reached.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())), uri)
        });
        stream::iter(dials).buffer_unordered(DIALS_MAX).collect().await
    }

    fn about<T>(&self, uri: &Uri, look: impl FnOnce(&mut EndpointBreaker) -> T) -> T {
        let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        look(away.entry(uri.clone()).or_default())
    }
}

impl Sink for WebhookSink {
    fn guarantee(&self) -> Guarantee {
        Guarantee {
            delivery: DeliverySemantics::AtLeastOnce,
            sentence: "Webhooks: every event at least once, in the order of its key; after a crash or a lost answer more \
                       often, with the same webhook-id and Idempotency-Key."
                .to_owned(),
            violations: self.violations.clone(),
        }
    }

    /// Connects to each endpoint and says nothing there.
    async fn probe(&mut self) -> Result<(), SinkError> {
        self.violations = self.poster.violations().into_iter().collect();
        if self.options.endpoints.is_empty() && self.options.any.is_none() {
            self.violations
                .push("no endpoint is configured: every event would be refused; name one".to_owned());
        }
        let mut away = None;
        for (reached, uri) in self.dial(self.endpoints().cloned().collect()).await {
            match reached {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    self.violations.push(format!("nothing is sent to {uri}: {error}"));
                }
                Err(error) => {
                    away.get_or_insert_with(|| {
                        SinkError::not_published(format!("{uri} could not be reached: {error}"))
                    });
                }
            }
        }
        away.map_or(Ok(()), Err)
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let until = Instant::now() + self.options.timeout;
        let mut answers = PublishResults::to(events);
        let mut lanes = KeyQueues::of(events);
        loop {
            let wave = lanes.next(&mut answers);
            if wave.is_empty() {
                break;
            }
            let this = &*self;
            let sends = wave.into_iter().map(|n| async move { (n, this.send(&events[n], until).await) });
            let mut sent = stream::iter(sends).buffer_unordered(self.options.concurrency);
            while let Some((n, answer)) = sent.next().await {
                answers.set(n, answer);
            }
        }
        answers.finish()
    }
}

fn request(event: &Event, endpoint: &Endpoint, style: &Style) -> Result<Request<Full<Bytes>>, SinkError> {
    let id = event.id().to_string();
    let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let signature = sign(&endpoint.secret, &id, timestamp, event.payload());
    let mut map = HeaderMap::new();
    for (name, text) in headers::of(event, style, "ce-") {
        let impossible = || SinkError::not_published(format!("HTTP cannot carry the header {name:?}"));
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| impossible())?;
        if is_ours(&header) {
            return Err(SinkError::not_published(format!("the header {name:?} is not for an event to set")));
        }
        map.insert(header, HeaderValue::from_bytes(text.as_bytes()).map_err(|_| impossible())?);
    }
    let ours = [
        ("webhook-id", id.clone()),
        ("webhook-timestamp", timestamp.to_string()),
        ("webhook-signature", signature.unwrap_or_default()),
        ("idempotency-key", format!("\"{id}\"")),
        ("user-agent", "semel".to_owned()),
    ];
    for (name, text) in ours {
        let value = HeaderValue::from_str(&text);
        map.insert(name, value.map_err(|error| SinkError::not_published(error.to_string()))?);
    }
    let mut request = Request::post(endpoint.uri.clone())
        .body(Full::new(event.payload().clone()))
        .map_err(|error| SinkError::not_published(error.to_string()))?;
    *request.headers_mut() = map;
    Ok(request)
}

fn judge(status: StatusCode, uri: &Uri) -> Published {
    let told = format!("{uri} answered {status}");
    let error = match Says::of(status) {
        Says::Taken => return Published::Confirmed,
        Says::Refused => return Published::Refused(SinkError::not_published(told)),
        Says::Redirected => SinkError::not_published(format!(
            "{told}: redirects are not followed; name the place it points to"
        )),
        Says::NotTaken => SinkError::not_published(told),
        Says::Unknown => SinkError::maybe_published(told),
    };
    // The endpoint is there and says it of this event, unless it says that it takes none now.
    let takes_none = matches!(status.as_u16(), 429 | 502..=504);
    Published::Failed(if takes_none { error } else { error.destination_down() })
}
