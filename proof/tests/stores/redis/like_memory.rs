//! The same requests at the same times get the same answers as from the store in memory: the Lua scripts decide as
//! `step` does.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use semel::intent::fingerprint::Fingerprint;
use semel::intent::state::Ruling;
use semel::store::memory::MemoryStore;
use semel::store::{Claim, Claimed, Decide, Filter, Finish, Record, Renewed, Store, Ticket};
use semel::{Effect, Epoch, Outcome, Owner, Retention, State, StoreTime, Verdict};
use testkit::services::{Service, require};

use super::support::{Server, connect, intent_of, options, prefix, say};

const HISTORIES: usize = 40;
const STEPS: usize = 80;
/// Far in the future: Redis' own clock must not expire anything meanwhile.
const BEGIN_MS: u64 = 4_000_000_000_000;

/// A clock that both stores share, and that stands until it is set.
struct Hand {
    ms: Arc<AtomicU64>,
    key: String,
    connection: ::redis::aio::MultiplexedConnection,
}

impl Hand {
    async fn advance(&mut self, ms: u64) {
        let now = self.ms.fetch_add(ms, Ordering::SeqCst) + ms;
        say::<()>(&mut self.connection, &["SET", &self.key, &now.to_string()]).await;
    }
}

#[derive(Clone, Debug)]
enum Op {
    Claim { key: u8, print: u8, recipe: u64, owner: u8, effect: usize, lease_ms: u64 },
    Renew { ticket: usize, lease_ms: u64 },
    Finish { ticket: usize, verdict: usize, body: Option<Vec<u8>>, retention: Option<u64> },
    Decide { key: u8, epochs_back: u64, ruling: usize },
    Wait { ms: u64 },
    Get { key: u8 },
    List { states: Vec<usize>, operation: Option<u8>, tenant: Option<u8>, older: Option<u64> },
}

fn ms(random: &mut fastrand::Rng) -> u64 {
    match random.u8(0..6) {
        0 => 0,
        1 => u64::MAX,
        _ => random.u64(1..200),
    }
}

fn op(random: &mut fastrand::Rng) -> Op {
    let maybe = |random: &mut fastrand::Rng, below: u8| random.bool().then(|| random.u8(0..below));
    match random.u8(0..20) {
        0..6 => Op::Claim {
            key: random.u8(0..6),
            print: random.u8(0..2),
            recipe: random.u64(1..3),
            owner: random.u8(0..4),
            effect: random.usize(0..3),
            lease_ms: ms(random),
        },
        6..8 => Op::Renew { ticket: random.usize(0..8), lease_ms: ms(random) },
        8..12 => Op::Finish {
            ticket: random.usize(0..8),
            verdict: random.usize(0..4),
            body: random.bool().then(|| (0..random.usize(0..40)).map(|_| random.u8(..)).collect()),
            retention: random.bool().then(|| ms(random)),
        },
        12..14 => {
            Op::Decide { key: random.u8(0..6), epochs_back: random.u64(0..2), ruling: random.usize(0..6) }
        }
        14..17 => Op::Wait { ms: random.u64(0..150) },
        17 => Op::Get { key: random.u8(0..6) },
        _ => Op::List {
            states: (0..random.usize(0..3)).map(|_| random.usize(0..5)).collect(),
            operation: maybe(random, 3),
            tenant: maybe(random, 3),
            older: random.bool().then(|| random.u64(0..200)),
        },
    }
}

fn named(key: u8) -> semel::Intent {
    let uuid = format!("017f22e2-79b0-7cc3-98c4-dc0c0c0739{key:02x}");
    let plain = key.to_string();
    intent_of(
        ["a", "a/b", "c"][usize::from(key % 3)],
        ["pay", "refund"][usize::from(key % 2)],
        if key > 3 { &uuid } else { &plain },
    )
}

/// Epochs differ between stores; their order does not. A finished record's lease is nobody's business any more, and
/// Redis does not keep it. Times beyond what is stored are far away in both.
#[derive(Default)]
struct Seen(HashMap<u64, usize>);

impl Seen {
    fn epoch(&mut self, epoch: Epoch) -> usize {
        let next = self.0.len();
        *self.0.entry(epoch.0).or_insert(next)
    }
    fn time(ms: u64) -> String {
        if ms > 1 << 47 { "far".to_owned() } else { ms.to_string() }
    }
    fn record(&mut self, record: &Record) -> String {
        let head = &record.head;
        let lease = if head.state.is_finished() { "over".to_owned() } else { Self::time(head.lease_until.0) };
        format!(
            "{:?} {} {:?} {:?} {:?} e{} {:?} until {lease} expires {:?} x{} {} {} {:?} {:?}",
            record.intent,
            record.intent.id(),
            head.state,
            head.effect,
            head.fingerprint,
            self.epoch(head.epoch),
            head.owner,
            head.expires_at.map(|at| Self::time(at.0)),
            record.attempts,
            record.created_at.0,
            record.changed_at.0,
            record.outcome,
            record.decision,
        )
    }
    fn claimed(&mut self, claimed: &Claimed) -> String {
        match claimed {
            Claimed::Run(Ticket { id, owner, epoch, attempt, lease_until, other_recipe }) => {
                let (epoch, until) = (self.epoch(*epoch), Self::time(lease_until.0));
                format!("run {id:?} {owner:?} e{epoch} #{attempt} until {until} {other_recipe}")
            }
            Claimed::InFlight(it) => format!("in flight {} {}", it.other_recipe, self.record(&it.record)),
            Claimed::Replay(it) => format!("replay {} {}", it.other_recipe, self.record(&it.record)),
            Claimed::Uncertain(it) => format!("uncertain {} {}", it.other_recipe, self.record(&it.record)),
            other => format!("{other:?}"),
        }
    }
}

/// What a store said so far.
#[derive(Default)]
struct Told {
    seen: Seen,
    tickets: Vec<Ticket>,
}

impl Told {
    async fn play(&mut self, store: &impl Store, op: &Op) -> String {
        let seen = &mut self.seen;
        match op.clone() {
            Op::Claim { key, print, recipe, owner, effect, lease_ms } => {
                let claim = Claim {
                    intent: named(key),
                    fingerprint: Fingerprint::from_parts([print; 32], recipe),
                    owner: Owner::from_bytes([owner + 1; 16]),
                    effect: Effect::ALL[effect],
                    lease_ms,
                };
                let claimed = store.claim(claim).await.unwrap();
                if let Claimed::Run(ticket) = &claimed {
                    self.tickets.push(*ticket);
                }
                seen.claimed(&claimed)
            }
            Op::Renew { ticket, lease_ms } => match self.tickets.iter().rev().nth(ticket) {
                Some(ticket) => match store.renew(*ticket, lease_ms).await.unwrap() {
                    Renewed::Until(until) => Seen::time(until.0),
                    stale => format!("{stale:?}"),
                },
                None => String::new(),
            },
            Op::Finish { ticket, verdict, body, retention } => {
                let Some(ticket) = self.tickets.iter().rev().nth(ticket) else { return String::new() };
                let finish = Finish {
                    verdict: Verdict::ALL[verdict],
                    outcome: body.map(|body| Outcome::new(200, body).header("a", "b")),
                    retention: retention.map_or(Retention::Forever, Retention::Ms),
                };
                format!("{:?}", store.finish(*ticket, finish).await.unwrap())
            }
            Op::Decide { key, epochs_back, ruling } => {
                let id = named(key).id();
                let epoch = store.get(id).await.unwrap().map_or(0, |record| record.head.epoch.0);
                let rulings = [
                    Ruling::Applied(Verdict::Completed),
                    Ruling::Applied(Verdict::FailedFinal),
                    Ruling::Applied(Verdict::FailedRetryable),
                    Ruling::Applied(Verdict::Uncertain),
                    Ruling::NotApplied,
                    Ruling::Release,
                ];
                let decide = Decide {
                    seen: Epoch(epoch.saturating_sub(epochs_back)),
                    ruling: rulings[ruling],
                    outcome: Some(Outcome::new(409, "decided")),
                    retention: Retention::Ms(100),
                    by: "somebody \"quoted\"".to_owned(),
                    why: "because\nof ü".to_owned(),
                };
                format!("{:?}", store.decide(id, decide).await.unwrap())
            }
            Op::Wait { .. } => String::new(),
            Op::Get { key } => match store.get(named(key).id()).await.unwrap() {
                Some(record) => seen.record(&record),
                None => "none".to_owned(),
            },
            Op::List { states, operation, tenant, older } => {
                let filter = Filter {
                    states: states.into_iter().map(|n| State::ALL[n]).collect(),
                    operation: operation.map(|n| ["pay", "refund", "other"][usize::from(n)].to_owned()),
                    tenant: tenant.map(|n| ["a", "a%2Fb", "nobody"][usize::from(n)].to_owned()),
                    older_than_ms: older,
                    after: None,
                    limit: 100,
                };
                let page = store.list(filter).await.unwrap();
                assert_eq!(page.next, None);
                let mut lines: Vec<String> = page.records.iter().map(|record| seen.record(record)).collect();
                lines.sort();
                lines.join(" | ")
            }
        }
    }
}

#[tokio::test]
async fn redis_answers_as_memory_does() {
    let Some(_) = require(Service::Redis) else { return };
    let server = Server::start(&[]).await;
    let seed = testkit::seed::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    for history in 0..HISTORIES {
        let name = prefix("like");
        server.say::<()>(&["FLUSHALL"]).await;
        let key = format!("{name}clock");
        let mut hand = Hand {
            ms: Arc::new(AtomicU64::new(BEGIN_MS)),
            key: key.clone(),
            connection: connect(&server.url()).await,
        };
        hand.advance(0).await;
        let ms = hand.ms.clone();
        let memory = MemoryStore::with_clock(move || StoreTime(ms.load(Ordering::SeqCst)));
        let theirs = "local time = redis.call('TIME')\n    return time[1] * 1000000 + time[2]";
        let ours = format!("return redis.call('GET', '{key}') * 1000");
        let redis = options(&server.url(), &name).editing(move |_, text| {
            assert!(text.contains(theirs));
            text.replace(theirs, &ours)
        });
        let redis = redis.create().await.unwrap();
        let (mut by_memory, mut by_redis) = (Told::default(), Told::default());
        let mut played = Vec::new();
        for _ in 0..STEPS {
            let op = op(&mut random);
            if let Op::Wait { ms } = op {
                hand.advance(ms).await;
            }
            played.push(format!("{op:?}"));
            let (memory, redis) = (by_memory.play(&memory, &op).await, by_redis.play(&redis, &op).await);
            assert_eq!(redis, memory, "seed {seed}, history {history}:\n{}", played.join("\n"));
        }
    }
}
