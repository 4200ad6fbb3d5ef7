//! Test fixture: a topic, an endpoint that may honour keys, and consumers that can be killed.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use semel::outbox::Event;
use semel::sink::kafka::KafkaSink;
use semel::sink::{Published, Sink};
use tempfile::TempDir;
use testkit::child::Child;
use testkit::services::{Lease, Service, require};

use crate::receiver::{Request, SOON};
use crate::relay_world::Relay;
use crate::semel::command;
use crate::world::block_on;

/// What the endpoint does with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Does {
    /// Does its work and answers with this status.
    Work(u16),
    /// Answers with this status and does nothing.
    Say(u16),
    /// Answers with this status when released, and does nothing.
    SayLater(u16),
    /// Closes the connection without doing its work.
    Cut,
    /// Does its work, then closes the connection.
    WorkAndCut,
    /// Does its work, and never answers.
    WorkAndHang,
}

type Judge = Box<dyn FnMut(&Request) -> Does + Send>;

#[derive(Default)]
struct Seen {
    /// Every request received.
    calls: Vec<Request>,
    /// The work done for new keys: the effects of an endpoint that honours them.
    effects: Vec<Request>,
    keys: HashMap<String, ()>,
}

pub(crate) struct Endpoint {
    address: SocketAddr,
    judge: Arc<Mutex<Judge>>,
    seen: Arc<Mutex<Seen>>,
    down: Arc<AtomicBool>,
    go: Arc<AtomicBool>,
}

impl Endpoint {
    pub(crate) fn start() -> Self {
        // It goes down and comes back, so its port must not be given to another process meanwhile.
        let listener = TcpListener::bind(("127.0.0.1", testkit::services::spare_port())).unwrap();
        let address = listener.local_addr().unwrap();
        let judge: Arc<Mutex<Judge>> = Arc::new(Mutex::new(Box::new(|_| Does::Work(204))));
        let (seen, down) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let go = Arc::<AtomicBool>::default();
        let endpoint =
            Self { address, judge: judge.clone(), seen: seen.clone(), down: down.clone(), go: go.clone() };
        std::thread::spawn(move || listen(Some(listener), address, &judge, &seen, &down, &go));
        endpoint
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/paid", self.address)
    }

    /// Behaves like this from now on.
    pub(crate) fn does(&self, judge: impl FnMut(&Request) -> Does + Send + 'static) {
        *self.judge.lock().unwrap() = Box::new(judge);
    }

    /// Makes it stop or resume listening.
    pub(crate) fn is_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    /// Releases the answers that are held back.
    pub(crate) fn let_go(&self) {
        self.go.store(true, Ordering::SeqCst);
    }

    pub(crate) fn calls(&self) -> Vec<Request> {
        self.seen.lock().unwrap().calls.clone()
    }

    pub(crate) fn effects(&self) -> Vec<Request> {
        self.seen.lock().unwrap().effects.clone()
    }

    /// Waits until it has had this many effects.
    pub(crate) fn wait_for_effects(&self, effects: usize) {
        let until = Instant::now() + 3 * SOON;
        while self.seen.lock().unwrap().effects.len() < effects {
            assert!(Instant::now() < until, "{} of {effects} effects", self.effects().len());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn listen(
    mut listener: Option<TcpListener>,
    address: SocketAddr,
    judge: &Arc<Mutex<Judge>>,
    seen: &Arc<Mutex<Seen>>,
    down: &AtomicBool,
    go: &Arc<AtomicBool>,
) {
    loop {
        std::thread::sleep(Duration::from_millis(2));
        if down.load(Ordering::SeqCst) {
            listener = None;
            continue;
        }
        if listener.is_none() {
            listener = TcpListener::bind(address).ok();
        }
        let Some(listening) = &listener else { continue };
        listening.set_nonblocking(true).unwrap();
        while let Ok((stream, _)) = listening.accept() {
            stream.set_nonblocking(false).unwrap();
            let (judge, seen, go) = (Arc::clone(judge), Arc::clone(seen), Arc::clone(go));
            std::thread::spawn(move || serve(stream, &judge, &seen, &go));
        }
    }
}

fn serve(stream: TcpStream, judge: &Mutex<Judge>, seen: &Mutex<Seen>, go: &AtomicBool) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut request = Request { headers, body: String::new() };
        let mut body = vec![0; request.header("content-length").parse().unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
        request.body = String::from_utf8_lossy(&body).into_owned();
        let does = (judge.lock().unwrap())(&request);
        {
            let mut seen = seen.lock().unwrap();
            seen.calls.push(request.clone());
            let works = matches!(does, Does::Work(_) | Does::WorkAndCut | Does::WorkAndHang);
            let key = request.header("idempotency-key").to_owned();
            if works && seen.keys.insert(key, ()).is_none() {
                seen.effects.push(request);
            }
        }
        while matches!(does, Does::SayLater(_)) && !go.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        match does {
            Does::Work(status) | Does::Say(status) | Does::SayLater(status) => {
                write!(reader.get_mut(), "HTTP/1.1 {status} Answer\r\ncontent-length: 0\r\n\r\n").ok()?;
            }
            Does::Cut | Does::WorkAndCut => return None,
            // Until the caller has disconnected.
            Does::WorkAndHang => return reader.read_exact(&mut [0]).ok(),
        }
    }
}

/// A topic and a store of the test's own.
pub(crate) struct Topic {
    pub(crate) name: String,
    kafka: Lease,
    directory: TempDir,
}

impl Topic {
    /// `None` if the run has no Kafka.
    pub(crate) fn new() -> Option<Self> {
        let kafka = require(Service::Kafka)?;
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let name = format!("consume_{}_{nanos}", std::process::id());
        Some(Self { name, kafka, directory: testkit::scratch::directory() })
    }

    pub(crate) fn event(&self, key: &str, n: usize) -> Arc<Event> {
        let event = Event::new(&self.name, "payment.completed", n.to_string()).unwrap();
        Arc::new(event.key(key).unwrap().header("region", "eu").unwrap())
    }

    /// In this order; the same event twice is published twice.
    pub(crate) fn publish(&self, events: &[Arc<Event>]) {
        block_on(async {
            let mut sink = KafkaSink::options(self.kafka.url()).open().unwrap();
            for part in events.chunks(500) {
                let (mut part, until) = (part.to_vec(), Instant::now() + SOON);
                while !part.is_empty() {
                    // The first events create the topic, which may take a busy broker longer than the sink waits.
                    let published = sink.publish(&part).await;
                    assert!(Instant::now() < until, "{published:?}");
                    let mut answers = published.iter();
                    part.retain(|_| answers.next() != Some(&Published::Confirmed));
                }
            }
        });
    }

    pub(crate) fn from(&self, group: &str) -> String {
        // A static member gets its partitions back at once after a kill. One group per topic: a shared group would
        // also be assigned partitions of other tests.
        let (brokers, topic) = (self.kafka.url(), &self.name);
        format!("kafka://{brokers}/{topic}?group={topic}_{group}&group.instance.id=one&session=6s")
    }

    pub(crate) fn store(&self) -> String {
        format!("sqlite:{}", self.directory.path().join("marks.db").display())
    }

    /// A gateway in front of the endpoint that answers duplicates with "in progress", and the URL through it.
    pub(crate) fn gateway(&self, endpoint: &Endpoint) -> (Child, String) {
        let config = self.directory.path().join("gateway.toml");
        std::fs::write(&config, "[[operation]]\nmatch = \"POST /paid\"\nin_flight = \"accept\"\n").unwrap();
        let store = format!("sqlite:{}", self.directory.path().join("intents.db").display());
        let upstream = format!("http://{}", endpoint.address);
        let base = ["gateway", "--single-tenant", "--upstream", &upstream, "--store", &store];
        let places = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"];
        let mut command = command(&[&base[..], &places].concat());
        command.arg(config);
        let mut gateway = Child::spawn(command, None).unwrap();
        let line = gateway.next_line(SOON).unwrap_or_else(|error| panic!("{error}"));
        let to = format!("http://{}/paid", line.strip_prefix("listening on ").unwrap());
        (gateway, to)
    }

    /// A running consumer named `mail`, in this group.
    pub(crate) fn consume(&self, group: &str, to: &Endpoint, args: &[&str]) -> Relay {
        self.consume_to(group, &to.url(), args)
    }

    pub(crate) fn consume_to(&self, group: &str, to: &str, args: &[&str]) -> Relay {
        let (from, store) = (self.from(group), self.store());
        let base = ["consume", "--from", &from, "--to", to, "--store", &store, "--admin", "127.0.0.1:0"];
        let usual = ["--name", "mail", "--lease", "1s", "--timeout", "5s", "--pause-max", "500ms"];
        let command = command(&[&base[..], &usual, args].concat());
        Relay::spawn(command, "consuming from ")
    }
}
