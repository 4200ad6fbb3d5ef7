//! The service as a process of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use testkit::child::Child;

use crate::client::{self, Answer};
use crate::database::Database;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Service {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
}

const IN_PROGRESS: &str = "IDEMPOTENCY_REQUEST_IN_PROGRESS";

/// Asks until the answer is not "in progress": a dead owner's lease has to end, or a commit takes longer than a
/// duplicate waits.
pub(crate) fn known(ask: impl Fn() -> Answer) -> Answer {
    let until = Instant::now() + PATIENCE;
    loop {
        let answer = ask();
        if answer.body["code"] != IN_PROGRESS {
            return answer;
        }
        assert!(Instant::now() < until, "it stays in progress");
        thread::sleep(Duration::from_millis(50));
    }
}

impl Service {
    pub(crate) fn start(database: &Database) -> Self {
        Self::start_with(database, None, None)
    }

    pub(crate) fn start_with(database: &Database, cache: Option<&str>, crash_at: Option<&str>) -> Self {
        let more: Vec<_> = cache.into_iter().flat_map(|cache| ["--cache", cache]).collect();
        Self::spawn(database, &more, crash_at)
    }

    /// With a card provider.
    pub(crate) fn with_cards(database: &Database, cards: &Path, crash_at: Option<&str>) -> Self {
        Self::spawn(database, &["--cards", cards.to_str().unwrap()], crash_at)
    }

    fn spawn(database: &Database, more: &[&str], crash_at: Option<&str>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
        command.args(["--store", &database.url(), "--serve", "127.0.0.1:0"]).args(more);
        let mut child = Child::spawn(command, crash_at).unwrap();
        let line = child.next_line(PATIENCE).unwrap_or_else(|error| {
            panic!("the service does not start: {error}; {:?}", child.wait(PATIENCE));
        });
        let address = line.strip_prefix("listening on ").unwrap().parse().unwrap();
        Self { child, address }
    }

    pub(crate) fn pay(&self, key: &str, amount: i64) -> Answer {
        client::pay(self.address, key, amount).unwrap()
    }

    pub(crate) fn refund(&self, payment: &str, key: &str, amount: i64) -> Answer {
        client::refund(self.address, payment, key, amount).unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        client::get(self.address, path)
    }
}
