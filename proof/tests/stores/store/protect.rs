//! A protected store on real servers: the laws about outcomes hold, and nothing readable reaches the server.

use semel::conformance::{self, Harness};
use semel::store::postgres::PostgresStore;
use semel::store::protect::{Keys, Protected, Protection, SealKey};
use semel::store::redis::RedisStore;
use semel::store::sqlite::SqliteStore;
use semel::store::tiered::TieredStore;
use semel::store::{Claimed, Store};
use semel::{Body, Outcome};
use testkit::services::{Lease, Service, require};

use crate::store::postgres::place::Place;
use crate::store::redis::support::{claim, completed, connect, options, prefix, run, say};
use crate::store::tiered::support::Place as Tiers;

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

/// What the gateway makes of `--store sqlite:… --cache redis://…` with keys: whatever goes into either is sealed.
struct Tiered(Tiers);

impl Harness for Tiered {
    type Store = Protected<TieredStore<SqliteStore>>;

    async fn store(&self) -> Self::Store {
        Protected::new(self.0.open().await, protection())
    }

    async fn reopen(&self, store: Self::Store) -> Option<Self::Store> {
        store.inner().authority().close().await;
        drop(store);
        Some(self.store().await)
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

fn contains(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|window| window == word)
}

#[test]
fn laws_of_outcomes_hold_on_tiers_and_nothing_readable_is_in_either() {
    for law in LAWS {
        let Some(place) = Tiers::new() else { return };
        conformance::block_on(conformance::run(law, &Tiered(place)));
    }
    let Some(place) = Tiers::new() else { return };
    conformance::block_on(async {
        let harness = Tiered(place);
        let (place, store) = (&harness.0, harness.store().await);
        keep_a_secret(&store).await;
        place.filled("stored", 1).await;
        // What a caller's own transaction writes past the tiers is sealed too, whichever of them protects.
        let tiers = place.over(Protected::new(place.sqlite().await, protection())).await;
        let written = tiers.protection().protect(&claim("k").intent.id(), Outcome::new(200, "Jane")).unwrap();
        assert!(matches!(written.body, Body::Sealed(_)), "{written:?}");
        drop(tiers);

        // In Redis.
        let mut connection = connect(place.redis.url()).await;
        let keys = place.entries().await;
        assert_eq!(keys.len(), 1);
        let held: Vec<u8> = ::redis::cmd("GET").arg(&keys[0]).query_async(&mut connection).await.unwrap();
        assert!(contains(&held, b"2026-11"), "the entry is not sealed");
        assert!(!contains(&held, b"Jane"), "the cache can be read");
        // In the database, and in the log beside it.
        let mut everything = Vec::new();
        for end in ["", "-wal"] {
            everything.extend(std::fs::read(format!("{}{end}", place.path().display())).unwrap_or_default());
        }
        assert!(contains(&everything, b"2026-11"), "the outcome was not found");
        assert!(!contains(&everything, b"Jane"), "the database can be read");

        // A store with the key is given it, by the cache as by the authority.
        let secret = |claimed: Claimed| match claimed {
            Claimed::Replay(existing) => existing.record.outcome.clone().unwrap(),
            other => panic!("{other:?}"),
        };
        let hits = place.looks("hit");
        let cached = secret(store.claim(claim("k")).await.unwrap());
        assert_eq!(place.looks("hit"), hits + 1);
        assert_eq!(cached.body_bytes().unwrap(), "Jane Doe ".repeat(100).as_bytes());
        assert_eq!(secret(store.claim_verified(claim("k")).await.unwrap()), cached);
        assert_eq!(store.get_cached(claim("k").intent.id()).await.unwrap().unwrap().outcome, Some(cached));

        // A store with another key, or none, gets an error: neither the sealed bytes nor leave to run again.
        let other = Keys::new(SealKey::new("2026-11", [8; 32]).unwrap());
        let strange = Keys::new(SealKey::new("2027-01", [7; 32]).unwrap());
        for protection in
            [Protection::none().seal(other), Protection::none().seal(strange), Protection::none()]
        {
            let blind = Protected::new(place.open().await, protection);
            let hits = place.looks("hit");
            for claimed in [blind.claim(claim("k")).await, blind.claim_verified(claim("k")).await] {
                let error = claimed.expect_err("it cannot be opened");
                assert!(!error.to_string().contains("Jane"), "{error}");
            }
            assert!(blind.get_cached(claim("k").intent.id()).await.is_err());
            assert!(blind.get(claim("k").intent.id()).await.is_err());
            assert_eq!(place.looks("hit"), hits + 2, "the cache was asked");
        }
        assert_eq!(place.entries().await.len(), 1);
    });
}
