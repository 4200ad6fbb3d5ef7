//! Bugs planted in the statements are noticed by the laws.

use std::panic::{AssertUnwindSafe, catch_unwind};

use semel::conformance::{self, Harness};
use semel::store::postgres::PostgresStore;

use super::place::Place;
use crate::store::caught::broken;

struct Planted(Place, fn(&str) -> String);

impl Harness for Planted {
    type Store = PostgresStore;

    async fn store(&self) -> PostgresStore {
        self.0.options().edit_sql(self.1).open().await.expect("the store opens")
    }

    async fn reopen(&self, store: PostgresStore) -> Option<PostgresStore> {
        store.close().await;
        Some(self.store().await)
    }
}

/// Breaks the law that is named, and only a change of the text can be the reason: the law holds without.
fn breaks(law: &str, edit: fn(&str) -> String) {
    let Some(place) = Place::take() else { return };
    let changed = [
        include_str!("../../../../../crates/semel/src/store/postgres/sql/claim.sql"),
        include_str!("../../../../../crates/semel/src/store/postgres/sql/finish.sql"),
        include_str!("../../../../../crates/semel/src/store/postgres/sql/renew.sql"),
    ]
    .iter()
    .any(|sql| edit(sql) != **sql);
    assert!(changed, "the bug was not planted: the text it replaces is not there");
    let harness = Planted(place, edit);
    let judged = catch_unwind(AssertUnwindSafe(|| conformance::block_on(conformance::run(law, &harness))));
    assert!(broken(judged), "{law} did not notice");
}

#[test]
fn a_finish_without_the_epoch() {
    breaks("finish_is_fenced_by_epoch", |sql| sql.replace("OR row.epoch <> asked.epoch", ""));
}

#[test]
fn a_finish_without_the_owner() {
    breaks("finish_is_fenced_by_owner", |sql| sql.replace("row.owner <> asked.owner OR", ""));
}

#[test]
fn a_second_outcome_that_overwrites_the_first() {
    breaks("the_first_outcome_stands", |sql| {
        sql.replace("WHEN row.state = asked.state THEN 1", "")
            .replace("WHEN row.state >= 2 THEN 10 + row.state", "")
    });
}

#[test]
fn a_lapsed_opaque_claim_that_runs_again() {
    breaks("a_lapsed_opaque_claim_is_uncertain", |sql| {
        sql.replace("AND i.effect > 0 AND i.expires_at IS NULL AND asked.effect > 0 THEN 3", "THEN 3")
    });
}

/// Slow: the law waits for an outcome to expire by the server's clock, and here in vain.
#[test]
fn an_expired_outcome_that_is_replayed_for_ever() {
    breaks("an_expired_outcome_is_absent", |sql| {
        sql.replace("WHEN i.state >= 2 AND i.expires_at <= clock.now THEN 2", "")
    });
}

#[test]
fn a_lapsed_lease_that_is_renewed() {
    breaks("a_lapsed_claim_is_not_renewed", |sql| {
        sql.replace("AND semel_intent.lease_until > clock.now", "")
    });
}

#[test]
fn an_epoch_that_does_not_rise() {
    breaks("epochs_rise_over_release_expiry_and_sweep", |sql| {
        sql.replace("greatest(nextval('semel_epoch'), looked.epoch + 1)", "looked.epoch")
            .replace("nextval('semel_epoch')", "1::bigint")
    });
}

#[test]
fn a_keyed_failure_that_an_opaque_claimant_may_run() {
    breaks("a_keyed_failure_is_uncertain_to_an_opaque_claimant", |sql| {
        sql.replace("i.effect = 0 OR asked.effect > 0 OR i.owner", "true OR i.owner")
    });
}

#[test]
fn an_uncertain_outcome_that_expires() {
    breaks("uncertain_never_expires", |sql| {
        sql.replace("WHEN asked.state >= 2 THEN clock.now + asked.retention_ms", "ELSE clock.now")
            .replace("i.state >= 2 AND i.expires_at", "i.expires_at")
    });
}

#[test]
fn a_takeover_that_makes_a_key_live_longer() {
    breaks("the_time_of_a_key_never_moves", |sql| {
        sql.replace(
            "WHEN looked.state < 2 AND asked.effect > 0 THEN looked.expires_at",
            "ELSE clock.now + asked.safe_for_ms",
        )
    });
}

#[test]
fn a_takeover_whose_key_may_be_forgotten() {
    breaks("a_lapsed_keyed_claim_is_uncertain_once_its_key_is_forgotten", |sql| {
        sql.replace("AND clock.now + asked.call_ms < i.expires_at", "AND i.expires_at IS NOT NULL")
    });
}

#[test]
fn a_keyed_failure_that_expires() {
    breaks("a_keyed_failure_is_uncertain_once_its_key_is_forgotten", |sql| {
        let plain = "CASE WHEN asked.state = 4 AND locked.safe_until IS NOT NULL THEN 1 ELSE asked.state END";
        sql.replace(plain, "asked.state")
            .replace("asked.state IN (1, 4) AND locked", "asked.state = 1 AND locked")
    });
}
