//! A protected store on real servers: the laws about outcomes hold, and nothing readable reaches the server.

use semel::conformance::{self, Harness};
use semel::store::Store;
use semel::store::postgres::PostgresStore;
use semel::store::protect::{Keys, Protected, Protection, SealKey};
use semel::store::redis::RedisStore;
use semel::{Body, Outcome};
use testkit::services::{Lease, Service, require};

use crate::postgres::place::Place;
use crate::redis::support::{claim, completed, connect, options, prefix, run, say};

/// The laws that have to do with outcomes; the others never see one.
const LAWS: [&str; 13] = [
    "an_outcome_comes_back_byte_for_byte",
    "an_empty_body_is_not_a_missing_one",
    "every_header_comes_back",
    "a_large_outcome_comes_back_whole",
    "too_large_an_outcome_is_refused_and_the_claim_stays",
    "a_final_failure_is_replayed",
    "the_first_outcome_stands",
    "a_late_outcome_is_taken",
    "an_uncertain_outcome_is_made_certain_by_its_owner",
    "an_applied_intent_is_replayed",
    "a_decided_outcome_is_kept_like_any_other",
    "of_many_finishes_one_is_recorded",
    "reopening_keeps_an_outcome",
];

fn protection() -> Protection {
    Protection::none().compress_above(200).seal(Keys::new(SealKey::new("2026-11", [7; 32]).unwrap()))
}

struct Postgres(Place);

impl Harness for Postgres {
    type Store = Protected<PostgresStore>;

    async fn store(&self) -> Self::Store {
        Protected::new(self.0.store().await, protection())
    }

    async fn reopen(&self, store: Self::Store) -> Option<Self::Store> {
        store.inner().close().await;
        Some(self.store().await)
    }
}

struct Redis {
    lease: Lease,
    prefix: String,
}

impl Harness for Redis {
    type Store = Protected<RedisStore>;

    async fn store(&self) -> Self::Store {
        let store = options(self.lease.url(), &self.prefix).create().await.unwrap();
        Protected::new(store, protection())
    }

    async fn reopen(&self, store: Self::Store) -> Option<Self::Store> {
        drop(store);
        Some(self.store().await)
    }

    fn sweeps(&self) -> bool {
        false
    }
}

/// Stores a secret and gives what the store itself holds of it.
async fn keep_a_secret(store: &Protected<impl Store>) {
    let secret = Outcome::new(201, "Jane Doe ".repeat(100)).header("x-name", "Jane Doe");
    let ticket = run(store, claim("k")).await;
    let finish = semel::store::Finish { outcome: Some(secret.clone()), ..completed("") };
    store.finish(ticket, finish).await.unwrap();
    assert_eq!(store.get(ticket.id).await.unwrap().unwrap().outcome, Some(secret));
    let held = store.inner().get(ticket.id).await.unwrap().unwrap().outcome.unwrap();
    assert!(held.headers.is_empty() && matches!(held.body, Body::Sealed(_)), "{held:?}");
}

#[test]
fn laws_of_outcomes_hold_on_postgres_and_nothing_readable_is_in_its_tables() {
    for law in LAWS {
        let Some(place) = Place::take() else { return };
        conformance::block_on(conformance::run(law, &Postgres(place)));
    }
    let Some(place) = Place::take() else { return };
    conformance::block_on(async {
        let harness = Postgres(place);
        let store = harness.store().await;
        keep_a_secret(&store).await;
        let client = harness.0.client().await;
        let tables = client
            .query("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()", &[])
            .await
            .unwrap();
        let mut everything = String::new();
        for table in tables {
            let rows = format!("SELECT t::text FROM {} t", table.get::<_, &str>(0));
            let rows = client.query(&rows, &[]).await.unwrap();
            everything.extend(rows.iter().map(|row| row.get::<_, String>(0)));
        }
        let jane: String = b"Jane".iter().map(|byte| format!("{byte:02x}")).collect();
        let sealed_with: String = b"2026-11".iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(everything.contains(&sealed_with), "the outcome was not found");
        assert!(!everything.contains("Jane") && !everything.contains(&jane), "{everything:.500}");
        store.inner().close().await;
    });
}

#[test]
fn laws_of_outcomes_hold_on_redis_and_nothing_readable_is_in_its_keys() {
    let Some(lease) = require(Service::Redis) else { return };
    let mut harness = Redis { lease, prefix: prefix("protect") };
    for law in LAWS {
        harness.prefix = prefix("protect");
        conformance::block_on(conformance::run(law, &harness));
    }
    conformance::block_on(async {
        let store = harness.store().await;
        keep_a_secret(&store).await;
        let mut connection = connect(harness.lease.url()).await;
        let keys: Vec<Vec<u8>> = say(&mut connection, &["KEYS", &format!("*{}*", harness.prefix)]).await;
        let mut records = 0;
        for key in keys {
            let kind: String = ::redis::cmd("TYPE").arg(&key).query_async(&mut connection).await.unwrap();
            let (command, record) = if kind == "hash" { ("HGETALL", true) } else { ("DUMP", false) };
            let held: Vec<Vec<u8>> = match record {
                true => ::redis::cmd(command).arg(&key).query_async(&mut connection).await.unwrap(),
                false => vec![::redis::cmd(command).arg(&key).query_async(&mut connection).await.unwrap()],
            };
            records += usize::from(held.iter().map(Vec::len).sum::<usize>() > 100);
            assert!(held.iter().all(|bytes| !bytes.windows(4).any(|window| window == b"Jane")), "{key:?}");
        }
        assert!(records > 0, "the record was not found");
    });
}
