//! The same requests at the same times get the same answers as from the store in memory.
//!
//! Time is a table: a role whose search_path finds a `clock_timestamp()` of the test's own before PostgreSQL's.
//! Any other clock in a statement would show at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use semel::StoreTime;
use semel::store::Store;
use semel::store::memory::MemoryStore;
use semel::store::postgres::PostgresStore;
use tokio_postgres::Client;

use super::place::{PATIENT, Place, clear_away};
use super::work::PATIENCE;
use crate::store::history::{Op, Transcript};

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
        format!("postgres://{}@{rest}?{PATIENT}", self.name())
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
        clear_away(&self.0.server, format!("DROP OWNED BY {name} CASCADE; DROP ROLE {name}"));
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

/// Everything a store says to the requests of one seed, line by line.
async fn transcript(store: &impl Store, hand: &Hand<'_>, seed: u64) -> Vec<String> {
    let mut draw = fastrand::Rng::with_seed(seed);
    let (mut said, mut written) = (Vec::new(), Transcript::default());
    for _ in 0..draw.usize(5..60) {
        let op = Op::draw(&mut draw);
        if let Op::Wait { ms } = op {
            hand.advance(ms).await;
        }
        said.push(format!("{op:?} -> {}", written.play(store, &op).await));
    }
    said
}

/// The first history in which the two differ, as both stores tell it. For a bug that is planted, as many are drawn as
/// it takes to show, within a minute.
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
    let (mut found, began) = (None, Instant::now());
    let enough = |history| match edit {
        Some(_) => began.elapsed() > PATIENCE * 2,
        None => history == HISTORIES,
    };
    for history in (0..).take_while(|history| !enough(*history)) {
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
