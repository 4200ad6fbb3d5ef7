//! Requests drawn by chance, and what a store says to them: two stores that are alike say the same.

use std::collections::HashMap;

use semel::intent::fingerprint::Fingerprint;
use semel::intent::guard_expiry::KeyWindow;
use semel::intent::state::Ruling;
use semel::store::{Claim, Claimed, Decide, Filter, Finish, Record, Renewed, Store, Ticket};
use semel::{
    Effect, Epoch, Intent, Key, Operation, Outcome, Owner, Retention, Scope, State, StoreTime, Verdict,
};

const RULINGS: [Ruling; 6] = [
    Ruling::Applied(Verdict::Completed),
    Ruling::Applied(Verdict::FailedFinal),
    Ruling::Applied(Verdict::FailedRetryable),
    Ruling::Applied(Verdict::Uncertain),
    Ruling::NotApplied,
    Ruling::Release,
];

/// One request, or a while without any.
#[derive(Clone, Debug)]
pub(crate) enum Op {
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
        all: bool,
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

impl Op {
    pub(crate) fn draw(random: &mut fastrand::Rng) -> Self {
        let maybe = |random: &mut fastrand::Rng, below: u8| random.bool().then(|| random.u8(0..below));
        match random.u8(0..21) {
            0..6 => Self::Claim {
                key: random.u8(0..6),
                print: random.u8(0..2),
                recipe: random.u64(1..3),
                owner: random.u8(0..4),
                effect: random.usize(0..3),
                lease_ms: some_ms(random),
                window: some_window(random),
            },
            6..8 => Self::Renew { ticket: random.usize(0..8), lease_ms: some_ms(random) },
            8..12 => Self::Finish {
                ticket: random.usize(0..8),
                verdict: random.usize(0..4),
                body: random.bool().then(|| (0..random.usize(0..40)).map(|_| random.u8(..)).collect()),
                retention: random.bool().then(|| some_ms(random)),
            },
            12..14 => Self::Decide {
                key: random.u8(0..6),
                epochs_back: random.u64(0..2),
                ruling: random.usize(0..RULINGS.len()),
            },
            14 => Self::Sweep { all: random.bool() },
            15..18 => Self::Wait { ms: random.u64(0..150) },
            18 => Self::Get { key: random.u8(0..6) },
            _ => Self::List {
                states: (0..random.usize(0..3)).map(|_| random.usize(0..5)).collect(),
                operation: maybe(random, 3),
                tenant: maybe(random, 3),
                older: random.bool().then(|| random.u64(0..200)),
                expiring: (random.u8(0..4) == 0).then(|| random.u64(0..300)),
            },
        }
    }
}

fn some_ms(random: &mut fastrand::Rng) -> u64 {
    match random.u8(0..6) {
        0 => 0,
        1 => u64::MAX,
        _ => random.u64(1..200),
    }
}

fn some_window(random: &mut fastrand::Rng) -> KeyWindow {
    let safe_for_ms = match random.u8(0..6) {
        0..3 => None,
        3 => Some(u64::MAX),
        _ => Some(random.u64(50..400)),
    };
    KeyWindow { safe_for_ms, call_ms: random.u64(0..60) }
}

fn named(key: u8) -> Intent {
    let text = match key {
        0..4 => key.to_string(),
        _ => format!("017f22e2-79b0-7cc3-98c4-dc0c0c0739{key:02x}"),
    };
    Intent::new(
        Scope::tenant(["a", "a/b", "c"][usize::from(key % 3)]).unwrap(),
        Operation::new(["pay", "refund"][usize::from(key % 2)]).unwrap(),
        Key::new(text).unwrap(),
    )
}

/// What a store said so far, written so that it can be compared: epochs differ between stores, their order does not.
pub(crate) struct Transcript {
    epochs: HashMap<u64, usize>,
    tickets: Vec<Ticket>,
    /// Times beyond what a store keeps are far away in both.
    far_ms: u64,
    /// Whether it keeps the lease of what is finished, which no longer matters.
    keeps_leases: bool,
}

impl Default for Transcript {
    fn default() -> Self {
        Self { epochs: HashMap::new(), tickets: Vec::new(), far_ms: 1 << 60, keeps_leases: true }
    }
}

impl Transcript {
    /// A store that keeps shorter times, and no lease of what is finished.
    pub(crate) fn thrifty(far_ms: u64) -> Self {
        Self { far_ms, keeps_leases: false, ..Self::default() }
    }

    fn epoch(&mut self, epoch: Epoch) -> usize {
        let next = self.epochs.len();
        *self.epochs.entry(epoch.0).or_insert(next)
    }

    fn time(&self, time: StoreTime) -> String {
        if time.0 > self.far_ms { "far".to_owned() } else { time.0.to_string() }
    }

    fn record(&mut self, record: &Record) -> String {
        let head = &record.head;
        let lease = match self.keeps_leases || !head.state.is_finished() {
            true => self.time(head.lease_until),
            false => "over".to_owned(),
        };
        let epoch = self.epoch(head.epoch);
        format!(
            "{:?} {} {:?} {:?} {:?} e{epoch} {:?} until {lease} expires {:?} safe {:?} x{} {} {} {:?} {:?}",
            record.intent,
            record.intent.id(),
            head.state,
            head.effect,
            head.fingerprint,
            head.owner,
            head.expires_at.map(|at| self.time(at)),
            head.safe_until.map(|at| self.time(at)),
            record.attempts,
            record.created_at.0,
            record.changed_at.0,
            record.outcome,
            record.decision,
        )
    }

    fn claimed(&mut self, claimed: &Claimed) -> String {
        match claimed {
            Claimed::Run(ticket) => {
                let Ticket { id, owner, epoch, attempt, lease_until, safe_until, other_recipe } = *ticket;
                let (epoch, until) = (self.epoch(epoch), self.time(lease_until));
                let safe = safe_until.map(|at| self.time(at));
                format!("run {id:?} {owner:?} e{epoch} #{attempt} until {until} safe {safe:?} {other_recipe}")
            }
            Claimed::InFlight(it) => format!("in flight {} {}", it.other_recipe, self.record(&it.record)),
            Claimed::Replay(it) => format!("replay {} {}", it.other_recipe, self.record(&it.record)),
            Claimed::Uncertain(it) => format!("uncertain {} {}", it.other_recipe, self.record(&it.record)),
            other => format!("{other:?}"),
        }
    }

    fn ticket(&self, back: usize) -> Option<Ticket> {
        self.tickets.iter().rev().nth(back).copied()
    }

    /// What the store says to a request. To a wait it says nothing: that is for the owner of its clock.
    pub(crate) async fn play(&mut self, store: &impl Store, op: &Op) -> String {
        match op.clone() {
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
                    self.tickets.push(*ticket);
                }
                self.claimed(&claimed)
            }
            Op::Renew { ticket, lease_ms } => match self.ticket(ticket) {
                Some(ticket) => match store.renew(ticket, lease_ms).await.unwrap() {
                    Renewed::Until(until) => self.time(until),
                    stale => format!("{stale:?}"),
                },
                None => String::new(),
            },
            Op::Finish { ticket, verdict, body, retention } => {
                let Some(ticket) = self.ticket(ticket) else { return String::new() };
                let finish = Finish {
                    verdict: Verdict::ALL[verdict],
                    outcome: body.map(|body| Outcome::new(200, body).header("a", "b")),
                    retention: retention.map_or(Retention::Forever, Retention::Ms),
                };
                format!("{:?}", store.finish(ticket, finish).await.unwrap())
            }
            Op::Decide { key, epochs_back, ruling } => {
                let id = named(key).id();
                let epoch = store.get(id).await.unwrap().map_or(0, |record| record.head.epoch.0);
                let decide = Decide {
                    seen: Epoch(epoch.saturating_sub(epochs_back)),
                    ruling: RULINGS[ruling],
                    outcome: Some(Outcome::new(409, "decided")),
                    retention: Retention::Ms(100),
                    by: "somebody \"quoted\"".to_owned(),
                    why: "because\nof ü and 🦀".to_owned(),
                };
                format!("{:?}", store.decide(id, decide).await.unwrap())
            }
            // Which of the expired ones go first is each store's own business: all or none.
            Op::Sweep { all } => format!("{:?}", store.sweep(if all { 1_000 } else { 0 }).await.unwrap()),
            Op::Wait { .. } => String::new(),
            Op::Get { key } => match store.get(named(key).id()).await.unwrap() {
                Some(record) => self.record(&record),
                None => "none".to_owned(),
            },
            Op::List { states, operation, tenant, older, expiring } => {
                let filter = Filter {
                    states: states.into_iter().map(|n| State::ALL[n]).collect(),
                    operation: operation.map(|n| ["pay", "refund", "other"][usize::from(n)].to_owned()),
                    tenant: tenant.map(|n| ["a", "a%2Fb", "stranger"][usize::from(n)].to_owned()),
                    older_than_ms: older,
                    expiring_within_ms: expiring,
                    after: None,
                    limit: 100,
                };
                let mut page = store.list(filter).await.unwrap();
                assert_eq!(page.next, None);
                // Claimed in the same millisecond: each store has an order, and they need not agree. In one order before
                // epochs are numbered: a decision's is first seen here.
                page.records.sort_by_key(|record| record.intent.id().to_string());
                let lines: Vec<String> = page.records.iter().map(|record| self.record(record)).collect();
                lines.join(" | ")
            }
        }
    }
}
