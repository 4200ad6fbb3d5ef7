//! The same requests at the same times get the same answers as from the store in memory.

use std::collections::HashMap;

use proptest::prelude::*;
use semel::intent::fingerprint::Fingerprint;
use semel::intent::guard_expiry::KeyWindow;
use semel::intent::state::Ruling;
use semel::store::memory::MemoryStore;
use semel::store::{Claim, Claimed, Decide, Filter, Finish, Record, Store, Ticket};
use semel::{Effect, Epoch, Outcome, Owner, Retention, State, Verdict};

use crate::sqlite_support::*;

#[derive(Clone, Debug)]
enum Op {
    Claim {
        key: u8,
        print: u8,
        recipe: u64,
        owner: u8,
        effect: usize,
        lease_ms: u64,
        window: KeyWindow,
    },
    Renew {
        ticket: usize,
        lease_ms: u64,
    },
    Finish {
        ticket: usize,
        verdict: usize,
        body: Option<Vec<u8>>,
        retention: Option<u64>,
    },
    Decide {
        key: u8,
        epochs_back: u64,
        ruling: usize,
    },
    Sweep {
        limit: usize,
    },
    Wait {
        ms: u64,
    },
    Get {
        key: u8,
    },
    List {
        states: Vec<usize>,
        operation: Option<u8>,
        tenant: Option<u8>,
        older: Option<u64>,
        expiring: Option<u64>,
    },
}

fn windows() -> impl Strategy<Value = KeyWindow> {
    let safe_for_ms = prop::option::of(prop_oneof![50..400u64, Just(u64::MAX)]);
    (safe_for_ms, 0..60u64).prop_map(|(safe_for_ms, call_ms)| KeyWindow { safe_for_ms, call_ms })
}

fn ops() -> impl Strategy<Value = Op> {
    let ms = prop_oneof![Just(0u64), 1..200u64, Just(u64::MAX)];
    prop_oneof![
        6 => (0..6u8, 0..2u8, 1..3u64, 0..4u8, 0..3usize, ms.clone(), windows()).prop_map(
            |(key, print, recipe, owner, effect, lease_ms, window)| {
                Op::Claim { key, print, recipe, owner, effect, lease_ms, window }
            }
        ),
        2 => (0..8usize, ms.clone()).prop_map(|(ticket, lease_ms)| Op::Renew { ticket, lease_ms }),
        4 => (0..8usize, 0..4usize, prop::option::of(prop::collection::vec(any::<u8>(), 0..40)), prop::option::of(ms))
            .prop_map(|(ticket, verdict, body, retention)| Op::Finish { ticket, verdict, body, retention }),
        2 => (0..6u8, 0..2u64, 0..6usize)
            .prop_map(|(key, epochs_back, ruling)| Op::Decide { key, epochs_back, ruling }),
        1 => (0..5usize).prop_map(|limit| Op::Sweep { limit }),
        3 => (0..150u64).prop_map(|ms| Op::Wait { ms }),
        1 => (0..6u8).prop_map(|key| Op::Get { key }),
        2 => (
            prop::collection::vec(0..5usize, 0..3),
            prop::option::of(0..3u8),
            prop::option::of(0..3u8),
            prop::option::of(0..200u64),
            prop::option::of(0..200u64)
        )
            .prop_map(|(states, operation, tenant, older, expiring)| {
                Op::List { states, operation, tenant, older, expiring }
            }),
    ]
}

fn named(key: u8) -> semel::Intent {
    intent_of(
        ["a", "a/b", "c"][usize::from(key % 3)],
        ["pay", "refund"][usize::from(key % 2)],
        &key.to_string(),
    )
}

/// Epochs differ between stores (one skips numbers the other does not); their order does not, and neither
/// may anything else. Times beyond SQLite's integers are far away in both.
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
            "{:?} {:?} {:?} {:?} e{} {:?} until {} expires {:?} safe {:?} x{} {} {} {:?} {:?}",
            record.intent,
            head.state,
            head.effect,
            head.fingerprint,
            self.epoch(head.epoch),
            head.owner,
            Self::time(head.lease_until.0),
            head.expires_at.map(|at| Self::time(at.0)),
            head.safe_until.map(|at| Self::time(at.0)),
            record.attempts,
            record.created_at.0,
            record.changed_at.0,
            record.outcome,
            record.decision,
        )
    }
    fn ticket(&mut self, ticket: &Ticket) -> String {
        let Ticket { id, owner, epoch, attempt, lease_until, safe_until, other_recipe } = *ticket;
        let safe = safe_until.map(|at| Self::time(at.0));
        let (epoch, until) = (self.epoch(epoch), Self::time(lease_until.0));
        format!("{id:?} {owner:?} e{epoch} #{attempt} until {until} safe {safe:?} {other_recipe}")
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

/// Everything a store says to `ops`, line by line.
async fn transcript(store: impl Store, hand: &Hand, ops: &[Op]) -> Vec<String> {
    let mut said = Vec::new();
    let mut seen = Seen::default();
    let mut tickets: Vec<Ticket> = Vec::new();
    for op in ops {
        let line = match op.clone() {
            Op::Claim { key, print, recipe, owner, effect, lease_ms, window } => {
                let claim = Claim {
                    intent: named(key),
                    fingerprint: Fingerprint::from_parts([print; 32], recipe),
                    owner: Owner::from_bytes([owner + 1; 16]),
                    effect: Effect::ALL[effect],
                    lease_ms,
                    window,
                };
                let claimed = store.claim(claim).await.unwrap();
                if let Claimed::Run(ticket) = &claimed {
                    tickets.push(*ticket);
                }
                seen.claimed(&claimed)
            }
            Op::Renew { ticket, lease_ms } => match tickets.iter().rev().nth(ticket) {
                Some(ticket) => match store.renew(*ticket, lease_ms).await.unwrap() {
                    semel::store::Renewed::Until(until) => Seen::time(until.0),
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
                    why: "because\nof ü".to_owned(),
                };
                format!("{:?}", store.decide(id, decide).await.unwrap())
            }
            // Which of the expired ones go first is each store's own business: all or none.
            Op::Sweep { limit } => {
                format!("{:?}", store.sweep(if limit == 0 { 0 } else { 1_000 }).await.unwrap())
            }
            Op::Wait { ms } => {
                hand.advance_ms(ms);
                continue;
            }
            Op::Get { key } => match store.get(named(key).id()).await.unwrap() {
                Some(record) => seen.record(&record),
                None => "none".to_owned(),
            },
            Op::List { states, operation, tenant, older, expiring } => {
                let filter = Filter {
                    states: states.into_iter().map(|n| State::ALL[n]).collect(),
                    operation: operation.map(|n| ["pay", "refund", "other"][usize::from(n)].to_owned()),
                    tenant: tenant.map(|n| ["a", "a%2Fb", "unknown"][usize::from(n)].to_owned()),
                    older_than_ms: older,
                    expiring_within_ms: expiring,
                    after: None,
                    limit: 100,
                };
                let mut page = store.list(filter).await.unwrap();
                assert_eq!(page.next, None);
                // Claimed in the same millisecond: each store has an order, and they need not agree.
                // In one order before epochs are numbered: a decision's is first seen here.
                page.records.sort_by_key(|record| record.intent.id().to_string());
                let lines: Vec<String> = page.records.iter().map(|record| seen.record(record)).collect();
                lines.join(" | ")
            }
        };
        said.push(format!("{op:?} -> {line}"));
    }
    said
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn sqlite_answers_as_memory_does(ops in prop::collection::vec(ops(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (memory, sqlite) = runtime.block_on(async {
            let hand = Hand::at(1_000_000);
            let memory = transcript(MemoryStore::with_clock(hand.clock()), &hand, &ops).await;
            let (place, hand) = (place(), Hand::at(1_000_000));
            let store = hand.options().open(&place.path).await.unwrap();
            (memory, transcript(store, &hand, &ops).await)
        });
        for (memory, sqlite) in memory.iter().zip(&sqlite) {
            prop_assert_eq!(memory, sqlite);
        }
        prop_assert_eq!(memory.len(), sqlite.len());
    }
}
