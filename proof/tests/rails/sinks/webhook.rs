//! Webhooks, received by a server of the test's own that writes down what it got.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use semel::conformance::sink::{ReadMessage, SinkHarness};
use semel::outbox::Event;
use semel::sink::webhook::{WebhookOptions, WebhookSink};
use semel::sink::{Published, Sink, SinkError};
use testkit::certificates::certificates;
use testkit::proxy::{Fault, Proxy};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::sinks::{SOON, confirmed, event, lose_an_answer, texts, unique};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// What came in, by topic. Topics that begin with a number are answered with that status, `small` ones refuse what is large, and
/// `slow` ones take their time.
#[derive(Clone)]
struct Receiver {
    address: SocketAddr,
    book: Arc<Mutex<HashMap<String, Vec<ReadMessage>>>>,
    connections: Arc<Mutex<usize>>,
}

impl Receiver {
    /// Runs until the test's process ends.
    fn start() -> Self {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            book: Arc::default(),
            connections: Arc::default(),
        };
        let this = receiver.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                while let Ok((stream, _)) = listener.accept().await {
                    *this.connections.lock().unwrap() += 1;
                    tokio::spawn(this.clone().serve(stream));
                }
            });
        });
        receiver
    }

    async fn serve(self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        while let Some((path, seen)) = receive(&mut stream).await {
            let topic = path.trim_start_matches('/').to_owned();
            if topic == "slow" {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            let status = match topic.split('-').next().unwrap() {
                "small" if seen.payload.len() > 2_000 => 413,
                number => number.parse().unwrap_or(204),
            };
            if status < 300 {
                self.book
                    .lock()
                    .unwrap()
                    .entry(seen.header("x-topic").unwrap_or(&topic).to_owned())
                    .or_default()
                    .push(seen);
            }
            // As semel in front of a service says it.
            let problem = match topic.split_once('-') {
                Some((_, "answer-lost")) => "idempotency-problem: IDEMPOTENCY_ANSWER_LOST\r\n",
                Some((_, "running")) => "idempotency-problem: IDEMPOTENCY_REQUEST_IN_PROGRESS\r\n",
                _ => "",
            };
            let answer = format!(
                "HTTP/1.1 {status} so\r\nlocation: http://{}/x\r\n{problem}content-length: 0\r\n\r\n",
                self.address
            );
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn read(&self, topic: &str) -> Vec<ReadMessage> {
        self.book.lock().unwrap().get(topic).cloned().unwrap_or_default()
    }

    fn url(&self, topic: &str) -> String {
        format!("http://{}/{topic}", self.address)
    }

    fn options(&self, topics: &[&str]) -> WebhookOptions {
        let options = WebhookSink::options().allow_private();
        topics
            .iter()
            .fold(options, |options, topic| options.endpoint(topic, &self.url(topic), SECRET).unwrap())
    }
}

/// One request: its path, and what was in it.
async fn receive(stream: &mut BufReader<TcpStream>) -> Option<(String, ReadMessage)> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1).unwrap().to_owned();
    assert!(line.starts_with("POST "), "{line}");
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let Some((name, text)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_owned(), text.to_owned()));
    }
    let pairs = headers.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    let seen = ReadMessage::new(Bytes::new(), pairs);
    let length = seen.header("content-length").map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some((path, ReadMessage { payload: body.into(), ..seen }))
}

struct Hooks {
    receiver: Receiver,
    topics: Mutex<Vec<String>>,
}

impl Hooks {
    fn new() -> Option<Self> {
        // Named beforehand: a sink is given its endpoints when it is opened.
        let topics = (0..3).map(|_| unique("law")).collect();
        Some(Self { receiver: Receiver::start(), topics: Mutex::new(topics) })
    }
}

impl SinkHarness for Hooks {
    type Sink = WebhookSink;

    async fn sink(&self) -> WebhookSink {
        let topics = self.topics.lock().unwrap().clone();
        let mut topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        topics.push("small-law");
        self.receiver.options(&topics).open()
    }

    async fn sink_at(&self, address: SocketAddr) -> WebhookSink {
        let options = WebhookSink::options().allow_private().timeout(Duration::from_secs(1));
        options.any_topic(&format!("http://{address}/"), SECRET).unwrap().open()
    }

    async fn topic(&self) -> String {
        let mut topics = self.topics.lock().unwrap();
        topics.rotate_left(1);
        topics[0].clone()
    }

    async fn refusing(&self) -> Option<(String, Bytes)> {
        Some(("small-law".to_owned(), vec![b'x'; 5_000].into()))
    }

    async fn read(&self, topic: &str) -> Vec<ReadMessage> {
        self.receiver.read(topic)
    }
}

mod laws {
    semel::sink_conformance!(super::Hooks::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_signature_is_what_another_implementation_makes_of_it() {
    let receiver = Receiver::start();
    let mut sink = receiver.options(&["signed"]).open();
    assert!(confirmed(&sink.publish(&[event("signed", "a", 42)]).await));
    let seen = &receiver.read("signed")[0];
    assert_eq!(seen.header("webhook-id"), seen.id());
    assert_eq!(seen.header("idempotency-key").map(|key| key.trim_matches('"')), seen.id());
    let script = "import base64,hashlib,hmac,sys\n\
                  key=base64.b64decode(sys.argv[1][6:])\n\
                  print('v1,'+base64.b64encode(hmac.new(key,sys.argv[2].encode(),hashlib.sha256).digest()).decode())";
    let signed = format!("{}.{}.42", seen.id().unwrap(), seen.header("webhook-timestamp").unwrap());
    let output = Command::new("python3").args(["-c", script, SECRET, &signed]).output().unwrap();
    let wanted = String::from_utf8(output.stdout).unwrap();
    assert_eq!(seen.header("webhook-signature"), Some(wanted.trim()));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_success_confirms_and_a_redirect_is_not_followed() {
    let receiver = Receiver::start();
    let topics = [
        "200-ok",
        "302-moved",
        "400-bad",
        "401-who",
        "404-where",
        "410-gone",
        "422-what",
        "429-slow",
        "500-broken",
        "500-answer-lost",
        "202-running",
    ];
    let mut sink = receiver.options(&topics).open();
    let events: Vec<_> = topics.iter().map(|topic| event(topic, "a", 1)).collect();
    let answers = sink.publish(&events).await;
    let classes: Vec<_> = answers
        .iter()
        .map(|answer| match answer {
            Published::Confirmed => "confirmed",
            Published::Refused(_) => "refused",
            Published::Failed(error) if error.is_maybe_published() => "in doubt",
            _ => "failed",
        })
        .collect();
    let wanted = [
        "confirmed",
        "failed",
        "refused",
        "failed",
        "failed",
        "refused",
        "refused",
        "failed",
        "in doubt",
        "confirmed",
        "in doubt",
    ];
    assert_eq!(classes, wanted);
    assert_eq!(receiver.read("x").len(), 0, "the redirect was followed");
    let answers = sink.publish(&[event("unknown", "a", 1)]).await;
    assert!(matches!(&answers[0], Published::Refused(_)), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_inside_are_not_connected_to_unless_allowed() {
    let receiver = Receiver::start();
    let port = receiver.address.port();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "127.1"] {
        let options = WebhookSink::options().timeout(Duration::from_secs(2));
        let mut sink = options.any_topic(&format!("http://{host}:{port}/in"), SECRET).unwrap().open();
        let answers = sink.publish(&[event("any", "a", 1)]).await;
        assert!(
            matches!(&answers[0], Published::Failed(error) if !error.is_maybe_published()),
            "{host}: {answers:?}"
        );
        assert!(format!("{answers:?}").contains("private address"), "{host}: {answers:?}");
    }
    assert_eq!(*receiver.connections.lock().unwrap(), 0, "somebody connected");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_does_not_say_how_it_is_carried() {
    let receiver = Receiver::start();
    let mut sink = receiver.options(&["in"]).open();
    for (name, text) in
        [("Host", "evil.example"), ("Content-Length", "0"), ("webhook-id", "1"), ("Authorization", "me")]
    {
        let bad = Event::new("in", "k", "{}").unwrap().header(name, text).unwrap();
        let answers = sink.publish(&[bad.into()]).await;
        assert!(matches!(&answers[0], Published::Refused(_)), "{name}: {answers:?}");
    }
    assert!(receiver.read("in").is_empty());
    for (url, secret) in [("https:///in", SECRET), ("ftp://a/", SECRET), ("/in", SECRET), ("http://a/", "x")]
    {
        assert!(WebhookSink::options().any_topic(url, secret).is_err(), "{url}");
    }
}

/// Ends TLS in front of a receiver, with the certificate of this directory, until the test ends.
async fn behind_tls(receiver: &Receiver, dir: &std::path::Path) -> u16 {
    let chain = CertificateDer::pem_file_iter(dir.join("server.pem")).unwrap().collect::<Result<_, _>>();
    let key = PrivateKeyDer::from_pem_file(dir.join("server.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.unwrap(), key)
        .unwrap();
    let (tls, listener) =
        (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let (port, behind) = (listener.local_addr().unwrap().port(), receiver.address);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tls = tls.clone();
            tokio::spawn(async move {
                let Ok(mut outside) = tls.accept(stream).await else { return };
                let mut inside = TcpStream::connect(behind).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_spoken_only_with_whom_an_authority_vouches_for() {
    let (receiver, at) = (Receiver::start(), tempfile::tempdir().unwrap());
    certificates(at.path());
    let port = behind_tls(&receiver, at.path()).await;
    let pem = |name: &str| std::fs::read(at.path().join(name)).unwrap();
    let sink = |host: &str, trust: Option<&str>| {
        let options = WebhookSink::options().allow_private().timeout(Duration::from_secs(5));
        let options = options.any_topic(&format!("https://{host}:{port}/tls"), SECRET).unwrap();
        trust.into_iter().fold(options, |options, name| options.trust(&pem(name)).unwrap()).open()
    };
    let mut trusted = sink("localhost", Some("ca.pem"));
    assert!(confirmed(&trusted.publish(&[event("tls", "a", 1), event("tls", "a", 2)]).await));
    assert_eq!(texts(&receiver.read("tls")), ["1", "2"]);
    // Of an authority that did not sign it, of the system's, and for another name.
    for mut sink in
        [sink("localhost", Some("other.pem")), sink("localhost", None), sink("127.0.0.1", Some("ca.pem"))]
    {
        let answers = sink.publish(&[event("tls", "a", 3)]).await;
        let refused = matches!(&answers[0], Published::Failed(error) if !error.is_maybe_published());
        assert!(refused && format!("{answers:?}").contains("certificate"), "{answers:?}");
    }
    assert_eq!(receiver.read("tls").len(), 2);
    assert!(WebhookSink::options().trust(b"nonsense").is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_none_and_the_repeat_has_the_same_id() {
    let receiver = Receiver::start();
    let proxy = Proxy::start(receiver.address).unwrap();
    let options = WebhookSink::options().allow_private().timeout(Duration::from_secs(3));
    let mut sink = options.any_topic(&format!("http://{}/lost", proxy.addr()), SECRET).unwrap().open();
    lose_an_answer(&mut sink, &proxy, "lost").await;
    let seen = receiver.read("lost");
    assert_eq!(texts(&seen), ["1", "2", "3"]);
    let second: Vec<_> = seen.iter().filter(|seen| seen.payload == "2").map(ReadMessage::id).collect();
    assert_eq!(second, [second[0], second[0]], "the second was received twice, with one id");
}

/// Takes connections and never answers. How many there were.
async fn silent() -> (SocketAddr, Arc<Mutex<usize>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (address, connections) = (listener.local_addr().unwrap(), Arc::<Mutex<usize>>::default());
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            *count.lock().unwrap() += 1;
            kept.push(stream);
        }
    });
    (address, connections)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_never_answers_is_not_waited_for_again_and_again() {
    let (receiver, (address, connections)) = (Receiver::start(), silent().await);
    let options = receiver.options(&["good"]).concurrency(2).attempt_timeout(Duration::from_secs(2));
    let mut sink = options.endpoint("silent", &format!("http://{address}/"), SECRET).unwrap().open();
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    let events: Vec<_> =
        keys.iter().flat_map(|key| ["silent", "good"].map(|topic| event(topic, key, 1))).collect();
    let answers = sink.publish(&events).await;
    let by_topic = |topic: &str| {
        let both = events.iter().zip(&answers);
        both.filter(|(event, _)| event.topic() == topic).map(|(_, answer)| answer).collect::<Vec<_>>()
    };
    assert!(by_topic("good").iter().all(|answer| **answer == Published::Confirmed), "{answers:?}");
    assert!(by_topic("silent").iter().all(|answer| matches!(answer, Published::Failed(_))), "{answers:?}");
    // Three, and one that was under way beside the third; a few more where the clock is late.
    let tried = *connections.lock().unwrap();
    assert!((3..=8).contains(&tried), "{tried} of {} events were sent to it", keys.len());
    let in_doubt = by_topic("silent").iter().filter(|answer| is_in_doubt(answer)).count();
    assert_eq!(in_doubt, tried, "what was not sent is known not to be published");
}

fn is_in_doubt(answer: &Published) -> bool {
    matches!(answer, Published::Failed(error) if error.is_maybe_published())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_comes_back_is_tried_by_one_event_and_then_by_all() {
    let receiver = Receiver::start();
    let proxy = Proxy::start(receiver.address).unwrap();
    let options = WebhookSink::options().allow_private();
    let mut sink = options.endpoint("back", &format!("http://{}/back", proxy.addr()), SECRET).unwrap().open();
    proxy.set(Fault::Refuse);
    let events: Vec<_> = (0..5).map(|n| event("back", &format!("k{n}"), 1)).collect();
    let begun = Instant::now();
    let failed = sink.publish(&events).await;
    assert!(failed.iter().all(|answer| matches!(answer, Published::Failed(_))), "{failed:?}");
    proxy.set(Fault::Pass);
    let still = sink.publish(&events[..1]).await;
    // For a second it is left alone; who comes later is the one that tries it.
    let in_time = begun.elapsed() < Duration::from_secs(1);
    assert!(!in_time || format!("{still:?}").contains("next attempt in"), "{still:?}");
    let until = Instant::now() + SOON;
    let mut back = confirmed(&still);
    while !back {
        assert!(Instant::now() < until, "it is not tried again");
        tokio::time::sleep(Duration::from_millis(20)).await;
        back = confirmed(&sink.publish(&events[..1]).await);
    }
    assert!(confirmed(&sink.publish(&events[1..]).await));
    assert_eq!(receiver.read("back").len(), 5);
}

fn errors(answers: &[Published]) -> Vec<SinkError> {
    let error = |answer: &Published| match answer {
        Published::Failed(error) => Some(error.clone()),
        _ => None,
    };
    answers.iter().filter_map(error).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_there_is_no_time_for_is_not_tried() {
    let receiver = Receiver::start();
    let options = receiver.options(&["slow"]).concurrency(1);
    let mut sink = options.attempt_timeout(Duration::from_secs(2)).timeout(Duration::from_secs(4)).open();
    let events: Vec<_> = (0..30).map(|n| event("slow", &format!("k{n}"), 1)).collect();
    let answers = sink.publish(&events).await;
    let unsent = errors(&answers).into_iter().filter(SinkError::is_not_tried).count();
    assert!(unsent > 0, "{answers:?}");
    assert!(receiver.read("slow").len() <= events.len() - unsent, "what was sent was tried");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_is_away_by_itself_only_where_another_can_be_reached() {
    let (receiver, (address, _)) = (Receiver::start(), silent().await);
    let events: Vec<_> = (0..20).map(|n| event("silent", &format!("k{n}"), 1)).collect();
    // Nothing is sent to the other one.
    for (others, one_place) in [(&["good"][..], true), (&[], false)] {
        let options = receiver.options(others).attempt_timeout(Duration::from_secs(1));
        let mut sink = options.endpoint("silent", &format!("http://{address}/"), SECRET).unwrap().open();
        let failed = errors(&sink.publish(&events).await);
        assert_eq!(failed.len(), events.len());
        let unsent: Vec<_> = failed.iter().filter(|error| !error.is_maybe_published()).collect();
        assert!(!unsent.is_empty(), "{failed:?}");
        let is = |error: &&SinkError| (error.is_destination_down(), error.is_not_tried());
        assert!(unsent.iter().all(|error| is(error) == (one_place, !one_place)), "{unsent:?}");
    }
}
