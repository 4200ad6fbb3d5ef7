//! The checks can fail: each planted bug of SQL is caught.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use semel::conformance::{self, Harness};
use semel::store::mysql::MysqlStore;

use crate::store::caught::broken;

use super::locks::{finish_behind_a_lock, patient};
use super::support::*;
use super::text::differ_in_case;

struct Spoilt {
    database: Database,
    rewrite: fn(String) -> String,
}

impl Harness for Spoilt {
    type Store = MysqlStore;

    async fn store(&self) -> MysqlStore {
        self.database.open(MysqlStore::options().queue_wait(SOON).rewriting(self.rewrite)).await
    }

    async fn reopen(&self, store: MysqlStore) -> Option<MysqlStore> {
        store.close().await;
        Some(self.store().await)
    }
}

/// Whether the law finds the bug within a minute: most of these are races.
fn caught(law: &str, rewrite: fn(String) -> String) -> bool {
    let began = Instant::now();
    while began.elapsed() < SOON {
        let Some(database) = conformance::block_on(Database::new()) else { return true };
        let harness = Spoilt { database, rewrite };
        let judge = || conformance::block_on(conformance::run(law, &harness));
        if broken(catch_unwind(AssertUnwindSafe(judge))) {
            return true;
        }
    }
    false
}

#[test]
fn an_insert_that_overwrites_the_winner_is_caught() {
    assert!(caught("of_many_claimants_one_runs", |sql| {
        sql.replace("AND NOT EXISTS (SELECT 1 FROM semel_intent i WHERE i.id = a.id)", "")
            .replace(
                "ON DUPLICATE KEY UPDATE id = semel_intent.id",
                "ON DUPLICATE KEY UPDATE owner = VALUES(owner), epoch = VALUES(epoch)",
            )
            .replace(") < ", ") < 1 + ")
    }));
}

#[test]
fn a_plain_read_under_repeatable_read_is_caught() {
    assert!(caught("of_many_takeovers_one_runs", |sql| {
        // Long enough between the plain read and the change for others to read the same.
        sql.replace("READ UNCOMMITTED", "REPEATABLE READ").replace("FOR UPDATE SKIP LOCKED", "").replace(
            "SELECT id FROM semel_intent WHERE id IN",
            "SELECT id FROM semel_intent WHERE SLEEP(0.3) = 0 AND id IN",
        )
    }));
}

#[test]
fn a_finish_that_does_not_ask_for_the_epoch_is_caught() {
    assert!(caught("finish_is_fenced_by_epoch", |sql| match sql.find("AND epoch = ") {
        Some(_) => sql.replace("AND epoch = ", "AND epoch >= 0 * "),
        None => sql,
    }));
}

#[test]
fn epochs_that_begin_anew_are_caught() {
    assert!(caught("epochs_rise_over_release_expiry_and_sweep", |sql| {
        sql.replace("LAST_INSERT_ID() * 1024", "1024")
    }));
}

#[test]
fn a_sweep_that_does_not_ask_for_the_expiry_is_caught() {
    assert!(caught("sweeping_while_claims_go_on_loses_nothing", |sql| {
        sql.replace("state IN (2, 3, 4) AND expires_at <= ", "state >= 0 * ")
            .replace("AND state >= 2 AND expires_at <= ", "AND state >= 0 * ")
    }));
}

#[tokio::test]
async fn a_clock_from_before_the_lock_is_caught() {
    let Some(database) = Database::new().await else { return };
    // More than once: a clock that is set back in between hides it.
    for _ in 0..5 {
        let options = MysqlStore::options().rewriting(|sql| patient(sql).replace("SYSDATE(3)", "NOW(3)"));
        let (changed, released) = finish_behind_a_lock(&database, options).await;
        if changed < released {
            return;
        }
        println!("{changed:?} is not before {released:?}");
    }
    panic!("the bug does not show");
}

#[test]
fn a_collation_that_ignores_case_is_caught() {
    let shown = catch_unwind(AssertUnwindSafe(|| {
        conformance::block_on(async {
            let Some(database) = Database::new().await else { panic!("goes without") };
            database.store().await;
            let fold =
                "ALTER TABLE semel_operation CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci";
            run(&mut database.raw().await, fold).await;
            differ_in_case(&database).await;
        });
    }));
    assert!(shown.is_err());
}
