//! Amazon SQS, as ElasticMQ speaks it, read by plain HTTP.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use proof::bare_sqs::{BareMessage, BareSqs};
use semel::conformance::sink::{ReadMessage, SinkHarness};
use semel::outbox::Event;
use semel::sink::sqs::{InDoubt, SqsOptions, SqsSink};
use semel::sink::{Published, Sink};
use testkit::proxy::{Fault, Proxy};
use testkit::services::{Lease, Service, require};

use crate::sinks::planted::{Bug, are_caught};
use crate::sinks::{PATIENCE, confirmed, event, lose_an_answer, texts, unique};

/// Each topic has a queue.
fn options(url: &str) -> SqsOptions {
    let url = format!("{}/000000000000/{{topic}}.fifo", url.trim_end_matches('/'));
    SqsSink::options(&url).credentials("somebody", "secret", None).region("elasticmq")
}

fn seen(message: &BareMessage) -> ReadMessage {
    let mut headers: Vec<(String, String)> = message.attributes.clone();
    if let Some(packed) = message.attribute("semel-headers") {
        let packed: Vec<(String, String)> = serde_json::from_str(packed).unwrap();
        headers.extend(packed);
    }
    let payload: Bytes = match message.attribute("semel-encoding") {
        None => message.body.clone().into(),
        Some("empty") => Bytes::new(),
        Some("base64") => decoded(&message.body).into(),
        Some(other) => panic!("{other:?} is no encoding"),
    };
    ReadMessage::new(payload, headers.iter().map(|(name, text)| (name.as_str(), text.as_str())))
}

/// Base64, by its definition.
fn decoded(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    for four in text.as_bytes().chunks(4) {
        let known: Vec<usize> =
            four.iter().filter_map(|letter| LETTERS.iter().position(|there| there == letter)).collect();
        let bits = known.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - known.len()));
        let three = [(bits >> 16) as u8, (bits >> 8) as u8, bits as u8];
        bytes.extend(&three[..known.len() - 1]);
    }
    bytes
}

struct Sqs {
    server: BareSqs,
    lease: Lease,
    /// What was read so far: reading takes it out.
    read: Mutex<HashMap<String, Vec<ReadMessage>>>,
}

impl Sqs {
    fn new() -> Option<Self> {
        let lease = require(Service::Elasticmq)?;
        Some(Self { server: BareSqs::new(lease.url()), lease, read: Mutex::default() })
    }

    fn topic(&self, prefix: &str) -> String {
        let name = unique(prefix);
        self.server.make(&format!("{name}.fifo"), &[]);
        name
    }

    fn take(&self, topic: &str) -> Vec<ReadMessage> {
        self.server.take(&self.server.queue(&format!("{topic}.fifo"))).iter().map(seen).collect()
    }
}

impl SinkHarness for Sqs {
    type Sink = SqsSink;

    async fn sink(&self) -> SqsSink {
        options(self.lease.url()).open().unwrap()
    }

    async fn sink_at(&self, address: SocketAddr) -> SqsSink {
        options(&format!("http://{address}")).timeout(Duration::from_secs(1)).open().unwrap()
    }

    async fn topic(&self) -> String {
        self.topic("law")
    }

    /// Bytes that are no text grow by a third on their way, to more than SQS takes.
    async fn refusing(&self) -> Option<(String, Bytes)> {
        Some((self.topic("small"), vec![255; 900_000].into()))
    }

    async fn read(&self, topic: &str) -> Vec<ReadMessage> {
        let taken = self.take(topic);
        let mut read = self.read.lock().unwrap();
        let all = read.entry(topic.to_owned()).or_default();
        all.extend(taken);
        all.clone()
    }
}

mod laws {
    semel::sink_conformance!(super::Sqs::new());
}

#[test]
fn planted_bugs_are_caught_on_the_real_queue() {
    let bugs = [
        (Bug::ConfirmsWhatWasSent, "a_broker_that_is_gone_confirms_nothing"),
        (Bug::ConfirmsWhatWasSent, "a_broker_that_is_silent_confirms_nothing"),
        (Bug::GoesOnPastARefusedEvent, "a_refused_event_is_reported_and_holds_back_its_key"),
        (Bug::NewIdForARepeat, "a_repeat_has_the_same_id"),
    ];
    are_caught(Sqs::new, &bugs);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_queue_nothing_is_confirmed() {
    let Some(sqs) = Sqs::new() else { return };
    let name = unique("later");
    let one = [event(&name, "a", 1)];
    let mut sink = sqs.sink().await;
    let answers = sink.publish(&one).await;
    assert!(matches!(&answers[0], Published::Failed(error) if !error.is_maybe_published()), "{answers:?}");
    sqs.server.make(&format!("{name}.fifo"), &[]);
    assert!(confirmed(&sink.publish(&one).await));
    let seen = sqs.take(&name);
    assert_eq!(texts(&seen), ["1"]);
    assert_eq!(seen[0].header("messagegroupid"), Some("a"));
    let known_by = seen[0].header("messagededuplicationid").unwrap();
    assert!(known_by.starts_with(&format!("{}.", seen[0].id().unwrap())), "{known_by}");
    assert_eq!(seen[0].header("semel-topic"), Some(name.as_str()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_not_fifo_is_reported_and_given_nothing() {
    let Some(sqs) = Sqs::new() else { return };
    let name = unique("standard");
    let queue = sqs.server.make(&name, &[]);
    let at = |url: &str| {
        let url = url.to_owned();
        async move {
            let mut sink = SqsSink::options(&url).credentials("a", "b", None).open().unwrap();
            sink.probe().await.unwrap();
            sink
        }
    };
    let mut sink = at(&queue).await;
    assert!(sink.guarantee().violations[0].contains("create a FIFO queue"), "{:?}", sink.guarantee());
    let answers = sink.publish(&[event("t", "a", 1)]).await;
    assert!(matches!(&answers[0], Published::Failed(error) if !error.is_maybe_published()), "{answers:?}");
    assert_eq!(sqs.server.len(&queue), 0);
    let missing = at(&sqs.server.queue("no-such.fifo")).await.guarantee();
    assert!(missing.violations[0].contains("create it first"), "{missing:?}");
    let right = sqs.server.make(&format!("{name}.fifo"), &[]);
    assert_eq!(at(&right).await.guarantee().violations, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_queue_s_name_is_refused_and_the_rest_goes_on() {
    let Some(sqs) = Sqs::new() else { return };
    let topic = sqs.topic("rest");
    let odd = ["a/b", "../x", "a.b", &"t".repeat(100)].map(|topic| event(topic, "odd", 1));
    let mut sink = sqs.sink().await;
    let answers = sink.publish(&[odd.to_vec(), vec![event(&topic, "a", 1)]].concat()).await;
    assert!(answers[..4].iter().all(|answer| matches!(answer, Published::Refused(_))), "{answers:?}");
    assert_eq!(answers[4], Published::Confirmed);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_headers_and_any_key_arrive() {
    let Some(sqs) = Sqs::new() else { return };
    let topic = sqs.topic("many");
    let mut many = Event::new(&topic, "k", "{}").unwrap().key("Grüße aus der Ferne").unwrap();
    for n in 0..32 {
        many = many.header(&format!("h:{n}"), "v").unwrap();
    }
    assert!(confirmed(&sqs.sink().await.publish(&[many.into()]).await));
    let seen = sqs.take(&topic);
    assert_eq!((seen[0].header("h:0"), seen[0].header("h:31")), (Some("v"), Some("v")));
    assert!(seen[0].header("messagegroupid").unwrap().starts_with("sha256:"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_none_and_the_repeat_is_stored_once() {
    let Some(sqs) = Sqs::new() else { return };
    let topic = sqs.topic("lost");
    let proxy = Proxy::start(sqs.lease.url().trim_start_matches("http://")).unwrap();
    let mut sink = options(&format!("http://{}", proxy.addr())).timeout(PATIENCE).open().unwrap();
    lose_an_answer(&mut sink, &proxy, &topic).await;
    let seen = sqs.take(&topic);
    assert_eq!(texts(&seen), ["1", "2", "3"]);
    assert_eq!(seen.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_doubt_for_longer_than_repeats_are_known_is_parked_and_not_sent() {
    let Some(sqs) = Sqs::new() else { return };
    let topic = sqs.topic("doubt");
    let proxy = Proxy::start(sqs.lease.url().trim_start_matches("http://")).unwrap();
    let (window, timeout) = (Duration::from_secs(2), Duration::from_secs(10));
    let open = |in_doubt| {
        let options = options(&format!("http://{}", proxy.addr())).window(window).timeout(timeout);
        options.in_doubt(in_doubt).open().unwrap()
    };
    let (mut parks, mut resends) = (open(InDoubt::Park), open(InDoubt::Resend));
    let (one, two) = (event(&topic, "a", 1), event(&topic, "b", 2));
    proxy.set(Fault::DropResponse);
    for (sink, event) in [(&mut parks, &one), (&mut resends, &two)] {
        let answers = sink.publish(std::slice::from_ref(event)).await;
        assert!(matches!(&answers[0], Published::Failed(error) if error.is_maybe_published()), "{answers:?}");
    }
    proxy.set(Fault::Pass);
    assert_eq!(sqs.take(&topic).len(), 2, "the answers were lost, not the messages");
    tokio::time::sleep(window).await;
    let answers = parks.publish(&[one.clone(), event(&topic, "a", 9)]).await;
    let Published::Refused(error) = &answers[0] else { panic!("it was sent blindly: {answers:?}") };
    assert!(error.is_maybe_published() && error.to_string().contains(&one.id().to_string()), "{error}");
    assert!(matches!(&answers[1], Published::Failed(_)), "what is behind it waits: {answers:?}");
    assert!(sqs.take(&topic).is_empty());
    assert!(confirmed(&resends.publish(&[two]).await));
    // Somebody looked, and had it sent again.
    assert!(confirmed(&parks.publish(&[one]).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_listener_nothing_is_in_doubt() {
    // Ours as long as the test runs, and deaf.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = socket.local_addr().unwrap();
    let mut sink = options(&format!("http://{address}")).open().unwrap();
    let answers = sink.publish(&[event("t", "a", 1)]).await;
    assert!(matches!(&answers[0], Published::Failed(error) if !error.is_maybe_published()), "{answers:?}");
    assert!(sink.probe().await.is_err());
}

/// All topics go to one queue.
#[tokio::test(flavor = "multi_thread")]
async fn one_id_on_two_topics_is_two_messages() {
    let Some(sqs) = Sqs::new() else { return };
    let name = unique("twins");
    let queue = sqs.server.make(&format!("{name}.fifo"), &[]);
    let options = SqsSink::options(&queue).credentials("somebody", "secret", None).region("elasticmq");
    let mut sink = options.open().unwrap();
    // The longest of topics, with all that a topic may have.
    let (paid, mail) = (format!("paid/{}", "x".repeat(195)), format!("mail\"{}", "x".repeat(195)));
    let one = Event::new(&paid, "k", "paid").unwrap();
    let other = Event::new(&mail, "k", "mail").unwrap().with_id(one.id());
    let both = [one.into(), other.into()];
    assert!(confirmed(&sink.publish(&both).await));
    // A repeat is still one.
    assert!(confirmed(&sink.publish(&both).await));
    let mut seen = texts(&sqs.take(&name));
    seen.sort();
    assert_eq!(seen, ["mail", "paid"]);
}
