//! The same requests at the same times get the same answers as from the store in memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use semel::intent::fingerprint::Fingerprint;
use semel::intent::state::Ruling;
use semel::store::memory::MemoryStore;
use semel::store::mysql::MysqlStore;
use semel::store::{Claim, Claimed, Decide, Filter, Finish, Record, Renewed, Store, Ticket};
use semel::{Effect, Epoch, Outcome, Owner, Retention, State, StoreTime, Verdict};
use sqlx::MySqlConnection;
use testkit::seed::{rng_for, seed};

use super::support::*;

const HISTORIES: u64 = 30;
const REQUESTS: usize = 60;
const BEGIN_MS: u64 = 1_000_000;

#[derive(Clone, Debug)]
enum Op {
    Claim { key: u8, print: u8, recipe: u64, owner: u8, effect: usize, lease_ms: u64 },
    Renew { ticket: usize, lease_ms: u64 },
    Finish { ticket: usize, verdict: usize, body: Option<Vec<u8>>, retention: Option<u64> },
    Decide { key: u8, epochs_back: u64, ruling: usize },
    Sweep { all: bool },
    Wait { ms: u64 },
    Get { key: u8 },
    List { states: Vec<usize>, operation: Option<u8>, tenant: Option<u8>, older: Option<u64> },
}

fn draw(rng: &mut fastrand::Rng) -> Op {
    let ms = |rng: &mut fastrand::Rng| match rng.u8(0..3) {
        0 => 0,
        1 => rng.u64(1..200),
        _ => u64::MAX,
    };
    let maybe = |rng: &mut fastrand::Rng| rng.bool();
    match rng.u8(0..21) {
        0..=5 => Op::Claim {
            key: rng.u8(0..6),
            print: rng.u8(0..2),
            recipe: rng.u64(1..3),
            owner: rng.u8(0..4),
            effect: rng.usize(0..3),
            lease_ms: ms(rng),
        },
        6..=7 => Op::Renew { ticket: rng.usize(0..8), lease_ms: ms(rng) },
        8..=11 => Op::Finish {
            ticket: rng.usize(0..8),
            verdict: rng.usize(0..4),
            body: maybe(rng).then(|| (0..rng.usize(0..40)).map(|_| rng.u8(..)).collect()),
            retention: maybe(rng).then(|| ms(rng)),
        },
        12..=13 => Op::Decide { key: rng.u8(0..6), epochs_back: rng.u64(0..2), ruling: rng.usize(0..6) },
        14 => Op::Sweep { all: rng.bool() },
        15..=17 => Op::Wait { ms: rng.u64(0..150) },
        18 => Op::Get { key: rng.u8(0..6) },
        _ => Op::List {
            states: (0..rng.usize(0..3)).map(|_| rng.usize(0..5)).collect(),
            operation: maybe(rng).then(|| rng.u8(0..3)),
            tenant: maybe(rng).then(|| rng.u8(0..3)),
            older: maybe(rng).then(|| rng.u64(0..200)),
        },
    }
}

fn named(key: u8) -> semel::Intent {
    let (tenant, operation) =
        (["a", "a/b", "c"][usize::from(key % 3)], ["pay", "refund"][usize::from(key % 2)]);
    intent_of(tenant, operation, &key.to_string())
}

/// Epochs differ between stores (one skips numbers the other does not); their order does not, and neither
/// may anything else. Times beyond the server's integers are far away in both.
#[derive(Default)]
struct Seen(HashMap<u64, usize>);

impl Seen {
    fn epoch(&mut self, epoch: Epoch) -> usize {
        let next = self.0.len();
        *self.0.entry(epoch.0).or_insert(next)
    }
    fn time(ms: u64) -> String {
        if ms > 1 << 60 { "far".to_owned() } else { ms.to_string() }
    }
    fn record(&mut self, record: &Record) -> String {
        let head = &record.head;
        format!(
            "{:?} {:?} {:?} {:?} e{} {:?} until {} expires {:?} x{} {} {} {:?} {:?}",
            record.intent,
            head.state,
            head.effect,
            head.fingerprint,
            self.epoch(head.epoch),
            head.owner,
            Self::time(head.lease_until.0),
            head.expires_at.map(|at| Self::time(at.0)),
            record.attempts,
            record.created_at.0,
            record.changed_at.0,
            record.outcome,
            record.decision,
        )
    }
    fn ticket(&mut self, ticket: &Ticket) -> String {
        let Ticket { id, owner, epoch, attempt, lease_until, other_recipe } = *ticket;
        let (epoch, until) = (self.epoch(epoch), Self::time(lease_until.0));
        format!("{id:?} {owner:?} e{epoch} #{attempt} until {until} {other_recipe}")
    }
    fn claimed(&mut self, claimed: &Claimed) -> String {
        match claimed {
            Claimed::Run(ticket) => format!("run {}", self.ticket(ticket)),
            Claimed::InFlight(existing) => format!("in flight {}", self.record(&existing.record)),
            Claimed::Replay(existing) => format!("replay {}", self.record(&existing.record)),
            Claimed::Uncertain(existing) => format!("uncertain {}", self.record(&existing.record)),
            other => format!("{other:?}"),
        }
    }
}

/// Lets virtual time pass.
enum Hand {
    Memory(Arc<AtomicU64>),
    Server(MySqlConnection),
}

impl Hand {
    async fn advance(&mut self, ms: u64) {
        match self {
            Self::Memory(now) => {
                now.fetch_add(ms, Ordering::Relaxed);
            }
            Self::Server(connection) => {
                run(connection, &format!("UPDATE virtual_time SET ms = ms + {ms}")).await;
            }
        }
    }
}

/// Everything a store says to `ops`, line by line.
async fn transcript(store: impl Store, hand: &mut Hand, ops: &[Op]) -> Vec<String> {
    let mut said = Vec::new();
    let mut seen = Seen::default();
    let mut tickets: Vec<Ticket> = Vec::new();
    for op in ops {
        let line = match op.clone() {
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
                    tickets.push(*ticket);
                }
                seen.claimed(&claimed)
            }
            Op::Renew { ticket, lease_ms } => match tickets.iter().rev().nth(ticket) {
                Some(ticket) => match store.renew(*ticket, lease_ms).await.unwrap() {
                    Renewed::Until(until) => Seen::time(until.0),
                    stale => format!("{stale:?}"),
                },
                None => continue,
            },
            Op::Finish { ticket, verdict, body, retention } => {
                let Some(ticket) = tickets.iter().rev().nth(ticket) else { continue };
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
                    why: "because\nof ü and 🦀".to_owned(),
                };
                format!("{:?}", store.decide(id, decide).await.unwrap())
            }
            // Which of the expired ones go first is each store's own business: all or none.
            Op::Sweep { all } => format!("{:?}", store.sweep(if all { 1_000 } else { 0 }).await.unwrap()),
            Op::Wait { ms } => {
                hand.advance(ms).await;
                continue;
            }
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
                // Claimed in the same millisecond: each store has an order, and they need not agree.
                lines.sort();
                lines.join(" | ")
            }
        };
        said.push(format!("{op:?} -> {line}"));
    }
    said
}

#[tokio::test]
async fn mysql_answers_as_memory_does() {
    let Some(database) = Database::new().await else { return };
    let seed = seed();
    let mut raw = database.raw().await;
    run(&mut raw, "CREATE TABLE virtual_time (ms BIGINT NOT NULL)").await;
    run(&mut raw, "INSERT INTO virtual_time VALUES (0)").await;
    let mut hand = Hand::Server(raw);
    for part in 0..HISTORIES {
        let mut rng = rng_for(seed, part);
        let length = rng.usize(1..=REQUESTS);
        let ops: Vec<Op> = (0..length).map(|_| draw(&mut rng)).collect();
        let time = Arc::new(AtomicU64::new(BEGIN_MS));
        let clock = Arc::clone(&time);
        let store = MemoryStore::with_clock(move || StoreTime(clock.load(Ordering::Relaxed)));
        let memory = transcript(store, &mut Hand::Memory(time), &ops).await;

        // One connection, then as many as usual: what travels alone and what may not.
        let options = MysqlStore::options().clock_sql("(SELECT ms FROM virtual_time)");
        let options = if part % 2 == 0 { options.connections(1) } else { options };
        let store = database.open(options).await;
        if let Hand::Server(raw) = &mut hand {
            run(raw, "DELETE FROM semel_intent").await;
            run(raw, &format!("UPDATE virtual_time SET ms = {BEGIN_MS}")).await;
        }
        let mysql = soon(transcript(store.clone(), &mut hand, &ops)).await;
        store.close().await;
        for (memory, mysql) in memory.iter().zip(&mysql) {
            assert_eq!(memory, mysql, "history {part} of seed {seed}");
        }
        assert_eq!(memory.len(), mysql.len());
    }
}
