//! The same requests at the same times get the same answers as from the store in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use semel::StoreTime;
use semel::store::Store;
use semel::store::memory::MemoryStore;
use semel::store::mysql::MysqlStore;
use sqlx::MySqlConnection;
use testkit::seed::{rng_for, seed};

use super::support::*;
use crate::store::history::{Op, Transcript};

const HISTORIES: u64 = 30;
const REQUESTS: usize = 60;
const BEGIN_MS: u64 = 1_000_000;

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
    let (mut said, mut written) = (Vec::new(), Transcript::default());
    for op in ops {
        if let Op::Wait { ms } = op {
            hand.advance(*ms).await;
        }
        said.push(format!("{op:?} -> {}", written.play(&store, op).await));
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
        let ops: Vec<Op> = (0..length).map(|_| Op::draw(&mut rng)).collect();
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
