//! The same requests at the same times get the same answers as from the store in memory.
//!
//! Time is a table: a role whose search_path finds a `clock_timestamp()` of the test's own before PostgreSQL's.
//! Any other clock in a statement would show at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use semel::intent::fingerprint::Fingerprint;
use semel::intent::policy::StoreTime;
use semel::intent::state::{Ruling, State};
use semel::store::memory::MemoryStore;
use semel::store::postgres::PostgresStore;
use semel::store::{Claim, Claimed, Decide, Filter, Finish, Record, Renewed, Store, Ticket};
use semel::{Effect, Epoch, Intent, Key, Operation, Outcome, Owner, Retention, Scope, Verdict};
use tokio_postgres::Client;

use super::place::{Place, apart};

const START_MS: u64 = 1_000_000;
const HISTORIES: u64 = 60;

/// A role that sees the time of the table `hand`.
struct Role<'a>(&'a Place);

impl Role<'_> {
    fn name(&self) -> &str {
        // Roles belong to the whole server; the schema's name is unique there.
        &self.0.schema
    }

    fn url(&self) -> String {
        let (_, rest) = self.0.server.rsplit_once('@').unwrap();
        format!("postgres://{}@{rest}", self.name())
    }

    async fn make(&self) -> Client {
        let person = self.0.client().await;
        let name = self.name();
        let sql = format!(
            "CREATE ROLE {name} LOGIN SUPERUSER;
             ALTER ROLE {name} SET search_path = {name}, pg_catalog;
             CREATE TABLE hand (ms bigint);
             INSERT INTO hand VALUES ({START_MS});
             CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
                 AS 'SELECT to_timestamp(ms / 1000.0) FROM {name}.hand'"
        );
        person.batch_execute(&sql).await.unwrap();
        person
    }
}

impl Drop for Role<'_> {
    fn drop(&mut self) {
        let name = self.name();
        apart(&self.0.server, format!("DROP OWNED BY {name} CASCADE; DROP ROLE {name}"));
    }
}

/// Moves a store's clock.
enum Hand<'a> {
    Memory(Arc<AtomicU64>),
    Table(&'a Client),
}

impl Hand<'_> {
    async fn advance(&self, ms: u64) {
        match self {
            Self::Memory(now) => {
                now.fetch_add(ms, Ordering::SeqCst);
            }
            Self::Table(client) => {
                let ms = i64::try_from(ms).unwrap();
                client.execute("UPDATE hand SET ms = ms + $1", &[&ms]).await.unwrap();
            }
        }
    }
}

/// Epochs differ between stores, their order does not. Times beyond the stores' integers are far in both.
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
    fn claimed(&mut self, claimed: &Claimed) -> String {
        match claimed {
            Claimed::Run(ticket) => {
                let Ticket { id, owner, epoch, attempt, lease_until, other_recipe } = *ticket;
                let (epoch, until) = (self.epoch(epoch), Self::time(lease_until.0));
                format!("run {id:?} {owner:?} e{epoch} #{attempt} until {until} {other_recipe}")
            }
            Claimed::InFlight(existing) => {
                format!("in flight {} {}", self.record(&existing.record), existing.other_recipe)
            }
            Claimed::Replay(existing) => {
                format!("replay {} {}", self.record(&existing.record), existing.other_recipe)
            }
            Claimed::Uncertain(existing) => {
                format!("uncertain {} {}", self.record(&existing.record), existing.other_recipe)
            }
            other => format!("{other:?}"),
        }
    }
}

fn named(key: u8) -> Intent {
    let scope = ["a", "a/b", "c"][usize::from(key % 3)];
    let operation = ["pay", "refund"][usize::from(key % 2)];
    Intent::new(
        Scope::tenant(scope).unwrap(),
        Operation::new(operation).unwrap(),
        Key::new(key.to_string()).unwrap(),
    )
}

fn some_ms(draw: &mut fastrand::Rng) -> u64 {
    match draw.u8(..10) {
        0 => 0,
        1 => u64::MAX,
        _ => draw.u64(1..200),
    }
}

/// Everything a store says to the requests of one seed, line by line.
async fn transcript(store: &impl Store, hand: &Hand<'_>, seed: u64) -> Vec<String> {
    let mut draw = fastrand::Rng::with_seed(seed);
    let (mut said, mut seen, mut tickets) = (Vec::new(), Seen::default(), Vec::<Ticket>::new());
    for _ in 0..draw.usize(5..60) {
        let line = match draw.u8(..21) {
            0..6 => {
                let claim = Claim {
                    intent: named(draw.u8(..6)),
                    fingerprint: Fingerprint::from_parts([draw.u8(..2); 32], draw.u64(1..3)),
                    owner: Owner::from_bytes([draw.u8(1..5); 16]),
                    effect: Effect::ALL[draw.usize(..3)],
                    lease_ms: some_ms(&mut draw),
                };
                let claimed = store.claim(claim).await.unwrap();
                if let Claimed::Run(ticket) = &claimed {
                    tickets.push(*ticket);
                }
                seen.claimed(&claimed)
            }
            6..8 => {
                let (nth, lease_ms) = (draw.usize(..8), some_ms(&mut draw));
                let Some(ticket) = tickets.iter().rev().nth(nth) else { continue };
                match store.renew(*ticket, lease_ms).await.unwrap() {
                    Renewed::Until(until) => Seen::time(until.0),
                    stale => format!("{stale:?}"),
                }
            }
            8..12 => {
                let nth = draw.usize(..8);
                let finish = Finish {
                    verdict: Verdict::ALL[draw.usize(..4)],
                    outcome: draw.bool().then(|| Outcome::new(200, vec![draw.u8(..); 30]).header("a", "b")),
                    retention: if draw.bool() {
                        Retention::Forever
                    } else {
                        Retention::Ms(some_ms(&mut draw))
                    },
                };
                let Some(ticket) = tickets.iter().rev().nth(nth) else { continue };
                format!("{:?}", store.finish(*ticket, finish).await.unwrap())
            }
            12..14 => {
                let id = named(draw.u8(..6)).id();
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
                    seen: Epoch(epoch.saturating_sub(draw.u64(..2))),
                    ruling: rulings[draw.usize(..6)],
                    outcome: Some(Outcome::new(409, "decided")),
                    retention: Retention::Ms(100),
                    by: "somebody \"quoted\"".to_owned(),
                    why: "because\nof ü".to_owned(),
                };
                format!("{:?}", store.decide(id, decide).await.unwrap())
            }
            14 => format!("{:?}", store.sweep(1_000).await.unwrap()),
            15..18 => {
                hand.advance(draw.u64(..150)).await;
                continue;
            }
            18 => match store.get(named(draw.u8(..6)).id()).await.unwrap() {
                Some(record) => seen.record(&record),
                None => "none".to_owned(),
            },
            _ => {
                let filter = Filter {
                    states: (0..draw.usize(..3)).map(|_| State::ALL[draw.usize(..5)]).collect(),
                    operation: draw.bool().then(|| ["pay", "refund", "other"][draw.usize(..3)].to_owned()),
                    tenant: draw.bool().then(|| ["a", "a%2Fb", "nobody"][draw.usize(..3)].to_owned()),
                    older_than_ms: draw.bool().then(|| draw.u64(..200)),
                    after: None,
                    limit: 100,
                };
                let page = store.list(filter).await.unwrap();
                assert_eq!(page.next, None);
                let mut lines: Vec<String> = page.records.iter().map(|record| seen.record(record)).collect();
                lines.sort();
                lines.join(" | ")
            }
        };
        said.push(line);
    }
    said
}

/// The first history in which the two differ, as both told it.
async fn difference(place: &Place, edit: Option<fn(&str) -> String>) -> Option<(u64, String, String)> {
    let role = Role(place);
    let person = role.make().await;
    let options = PostgresStore::options(&role.url()).unwrap();
    let options = match edit {
        Some(edit) => options.edit_sql(edit),
        None => options,
    };
    let store = options.open().await.unwrap();
    let seed = testkit::seed::seed();
    let mut found = None;
    for history in 0..HISTORIES {
        let seed = testkit::seed::rng_for(seed, history).u64(..);
        let now = Arc::new(AtomicU64::new(START_MS));
        let clock = Arc::clone(&now);
        let memory = MemoryStore::with_clock(move || StoreTime(clock.load(Ordering::SeqCst)));
        let expected = transcript(&memory, &Hand::Memory(now), seed).await;
        let reset = format!("TRUNCATE semel_intent; UPDATE hand SET ms = {START_MS}");
        person.batch_execute(&reset).await.unwrap();
        let said = transcript(&store, &Hand::Table(&person), seed).await;
        if let Some(at) = (0..expected.len().max(said.len())).find(|at| expected.get(*at) != said.get(*at)) {
            let line = |lines: &[String]| lines.get(at).cloned().unwrap_or_default();
            found = Some((history, line(&expected), line(&said)));
            break;
        }
    }
    store.close().await;
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn it_answers_as_memory_does() {
    let Some(place) = Place::take() else { return };
    let difference = difference(&place, None).await;
    assert_eq!(difference, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_transactions_time_in_place_of_the_clocks_is_noticed() {
    let Some(place) = Place::take() else { return };
    let edit: fn(&str) -> String = |sql| sql.replace("clock_timestamp()", "now()");
    assert!(difference(&place, Some(edit)).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_key_given_to_another_request_is_noticed() {
    let Some(place) = Place::take() else { return };
    let edit: fn(&str) -> String =
        |sql| sql.replace("WHEN i.recipe = asked.recipe AND i.fingerprint <> asked.fingerprint THEN 0", "");
    assert!(difference(&place, Some(edit)).await.is_some());
}
