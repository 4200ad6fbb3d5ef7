//! Webhooks: each event is a signed POST, as defined by [Standard Webhooks](https://www.standardwebhooks.com).
//!
//! | in the request | from the event |
//! |---|---|
//! | body | its payload |
//! | `webhook-id`, `Idempotency-Key` | its id, the same however often it is sent |
//! | `webhook-timestamp`, `webhook-signature` | when it was sent, and the sender's HMAC signature |
//! | other headers | the common ones, see [`headers`] |
//!
//! | answer | means |
//! |---|---|
//! | 2xx | confirmed |
//! | 400, 410, 413, 415, 422 | refused |
//! | anything else, or none | retried; redirects are not followed |
//!
//! **Order.** At most one event of a key is in flight; keys do not wait for each other. Each topic has its endpoint.
//!
//! **An endpoint that is down** does not delay the others for long (circuit breaker). After three different events
//! without an answer, nothing is sent to it for a second, then ever longer, up to a minute; then one event probes it.
//! If the probe fails (or at once, if the endpoint times out instead of refusing connections) its events are parked,
//! provided another endpoint can be reached. If none can, the network may be down, and they wait.
//!
//! **Where it may connect.** Every address is checked when it is connected to: this machine, private networks and cloud
//! metadata addresses are not connected to unless [allowed](WebhookOptions::allow_private). `https://` is trusted if a
//! certificate authority of the system, or one of [`trust`](WebhookOptions::trust), signed the certificate.

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

/// Most connections opened at once by a probe.
const DIALS_MAX: usize = 16;
/// Longest time for one of these connections.
const DIAL_MAX: Duration = Duration::from_secs(4);
/// How long the result of such a probe counts.
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
        let bad =
            |why: &str| SinkError::not_published(format!("{url:?} is not a valid webhook address: {why}"));
        let uri = http_post::endpoint(url).map_err(bad)?;
        let secret = Secret::standard(secret).map_err(SinkError::not_published)?;
        Ok(Self { uri, secret })
    }
}

impl WebhookOptions {
    /// Sends events of this topic to this address, signed with this secret (`whsec_…`).
    ///
    /// # Errors
    /// If the address or the secret is invalid.
    pub fn endpoint(mut self, topic: &str, url: &str, secret: &str) -> Result<Self, SinkError> {
        self.endpoints.insert(topic.to_owned(), Endpoint::new(url, secret)?);
        Ok(self)
    }

    /// Sends events of all other topics to this address. Without it they are refused.
    ///
    /// # Errors
    /// If the address or the secret is invalid.
    pub fn any_topic(mut self, url: &str, secret: &str) -> Result<Self, SinkError> {
        self.any = Some(Endpoint::new(url, secret)?);
        Ok(self)
    }

    /// Also connects to this machine and to private networks. Safe only if no other party chooses the endpoints.
    pub fn allow_private(mut self) -> Self {
        self.allow_private = true;
        self
    }

    /// Trusts the certificate authorities of this PEM file instead of the system's.
    ///
    /// # Errors
    /// If it contains no certificate, or anything else.
    pub fn trust(mut self, pem: &[u8]) -> Result<Self, SinkError> {
        let bad = |why| SinkError::not_published(format!("not a PEM file of certificate authorities: {why}"));
        self.trust = Some(tls_roots::of_pem(pem).map_err(bad)?);
        Ok(self)
    }

    /// Most requests in flight at once: by default 8.
    pub fn concurrency(mut self, requests: usize) -> Self {
        self.concurrency = requests.clamp(1, 256);
        self
    }

    /// Also sends the attributes of CloudEvents in binary mode, with this `source` (a URI reference).
    pub fn cloud_events(mut self, source: &str) -> Self {
        self.style = Style::CloudEvents { source: source.to_owned() };
        self
    }

    /// Timeout of one request: by default 10 s.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt = timeout.max(Duration::from_millis(50));
        self
    }

    /// Timeout of one call: by default 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.max(Duration::from_millis(100));
        self
    }

    /// Creates the sink. A call has time for two attempts at least, or the breaker could never open.
    pub fn open(mut self) -> WebhookSink {
        self.timeout = self.timeout.max(self.attempt * 2);
        let endpoints = self.endpoints.values().chain(&self.any).map(|endpoint| &endpoint.uri);
        let poster = Poster::new(endpoints, self.allow_private, self.attempt, self.trust.as_ref());
        let violations = poster.violations().into_iter().collect();
        WebhookSink {
            options: self,
            poster,
            breakers: Mutex::default(),
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
    breakers: Mutex<HashMap<Uri, EndpointBreaker>>,
    /// The endpoints that could be reached at the last probe.
    others: tokio::sync::Mutex<Option<(Instant, HashSet<Uri>)>>,
    violations: Vec<String>,
}

impl WebhookSink {
    /// Options without endpoints.
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
            let message = format!("no endpoint is configured for the topic {:?}", event.topic());
            return Published::Refused(SinkError::not_published(message));
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
        if let Some(open) = self.with_breaker(uri, |breaker| breaker.check(begun, attempt)) {
            let message = format!("{uri} did not answer; next attempt in {} s", open.left.as_secs() + 1);
            let parks = open.for_long && self.others_are_up(uri, &open).await;
            return Published::Failed(match parks {
                true => SinkError::not_published(message).destination_down(),
                false => SinkError::not_tried(message),
            });
        }
        let sent = self.poster.send(request, Some(until)).await;
        let now = Instant::now();
        self.with_breaker(uri, |breaker| match sent {
            Sent::Answered(_) => breaker.answered(now),
            // The endpoint did not have its full time.
            Sent::TimedOut if begun + attempt > until => {}
            _ => breaker.not_answered(event.id(), begun, now, attempt),
        });
        match sent {
            Sent::Answered(answer) if answer.is_in_progress() => Published::Failed(
                SinkError::maybe_published(format!("{uri} answered {}: still processing it", answer.status)),
            ),
            // It took effect, and an event needs no answer.
            Sent::Answered(answer) if answer.is_answer_lost() => Published::Confirmed,
            Sent::Answered(answer) => classify(answer.status, uri),
            Sent::TimedOut => {
                Published::Failed(SinkError::maybe_published(format!("{uri} did not answer in time")))
            }
            Sent::NotReached(why) => {
                Published::Failed(SinkError::not_published(format!("{uri} could not be reached: {why}")))
            }
            Sent::Lost(why) => {
                Published::Failed(SinkError::maybe_published(format!("lost the connection to {uri}: {why}")))
            }
        }
    }
}

impl WebhookSink {
    fn endpoints(&self) -> impl Iterator<Item = &Uri> {
        self.options.endpoints.values().chain(&self.options.any).map(|endpoint| &endpoint.uri)
    }

    /// Whether another endpoint has answered since this one stopped, or can at least be connected to: nothing may have
    /// been sent there since. Otherwise the network may be down.
    async fn others_are_up(&self, uri: &Uri, open: &OpenState) -> bool {
        let has_answered = |breakers: &HashMap<Uri, EndpointBreaker>| {
            breakers.iter().any(|(other, breaker)| other != uri && breaker.has_answered_since(open.since))
        };
        if has_answered(&self.breakers.lock().unwrap_or_else(PoisonError::into_inner)) {
            return true;
        }
        // One request probes; the others wait for its result.
        let mut others = self.others.lock().await;
        let there = match others.take().filter(|(at, _)| at.elapsed() < REACHED_FOR) {
            Some(known) => known,
            None => {
                // Without endpoints that are known to be down.
                let asked =
                    self.endpoints().filter(|uri| !self.with_breaker(uri, |breaker| breaker.is_open()));
                let dialled = self.dial(asked.cloned().collect()).await.into_iter();
                let reached = dialled.filter_map(|(reached, uri)| reached.is_ok().then_some(uri));
                (Instant::now(), reached.collect())
            }
        };
        let found = there.1.iter().any(|other| other != uri);
        *others = Some(there);
        found
    }

    /// Connects to each of these endpoints without sending anything.
    async fn dial(&self, endpoints: HashSet<Uri>) -> Vec<(std::io::Result<()>, Uri)> {
        let dials = endpoints.into_iter().map(|uri| async move {
            let reached = tokio::time::timeout(DIAL_MAX, self.poster.reach(&uri)).await;
            (reached.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())), uri)
        });
        stream::iter(dials).buffer_unordered(DIALS_MAX).collect().await
    }

    fn with_breaker<T>(&self, uri: &Uri, run: impl FnOnce(&mut EndpointBreaker) -> T) -> T {
        let mut breakers = self.breakers.lock().unwrap_or_else(PoisonError::into_inner);
        run(breakers.entry(uri.clone()).or_default())
    }
}

impl Sink for WebhookSink {
    fn guarantee(&self) -> Guarantee {
        Guarantee {
            delivery: DeliverySemantics::AtLeastOnce,
            sentence: "Webhooks: every event at least once, in the order of its key; after a crash or a lost answer \
                       more often, with the same webhook-id and Idempotency-Key."
                .to_owned(),
            violations: self.violations.clone(),
        }
    }

    /// Connects to each endpoint without sending anything.
    async fn probe(&mut self) -> Result<(), SinkError> {
        self.violations = self.poster.violations().into_iter().collect();
        if self.options.endpoints.is_empty() && self.options.any.is_none() {
            self.violations
                .push("no endpoint is configured, so every event would be refused; configure one".to_owned());
        }
        let mut unreached = None;
        for (reached, uri) in self.dial(self.endpoints().cloned().collect()).await {
            match reached {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    self.violations.push(format!("nothing is sent to {uri}: {error}"));
                }
                Err(error) => {
                    unreached.get_or_insert_with(|| {
                        SinkError::not_published(format!("{uri} could not be reached: {error}"))
                    });
                }
            }
        }
        unreached.map_or(Ok(()), Err)
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let until = Instant::now() + self.options.timeout;
        let mut answers = PublishResults::to(events);
        let mut queues = KeyQueues::of(events);
        loop {
            let round = queues.next(&mut answers);
            if round.is_empty() {
                break;
            }
            let this = &*self;
            let sends = round.into_iter().map(|n| async move { (n, this.send(&events[n], until).await) });
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
            return Err(SinkError::not_published(format!(
                "the header {name:?} is reserved: an event must not set it"
            )));
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

fn classify(status: StatusCode, uri: &Uri) -> Published {
    let message = format!("{uri} answered {status}");
    let error = match Says::of(status) {
        Says::Taken => return Published::Confirmed,
        Says::Refused => return Published::Refused(SinkError::not_published(message)),
        Says::Redirected => SinkError::not_published(format!(
            "{message}: redirects are not followed; configure the address that it points to"
        )),
        Says::NotTaken => SinkError::not_published(message),
        Says::Unknown => SinkError::maybe_published(message),
    };
    // The endpoint is up and rejected this event, unless the status says that it accepts nothing now.
    let accepts_none = matches!(status.as_u16(), 429 | 502..=504);
    Published::Failed(if accepts_none { error } else { error.destination_down() })
}
