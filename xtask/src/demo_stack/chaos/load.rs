//! Clients that ask at a steady pace, and retry until they are answered.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::demo_stack::Patience;
use crate::demo_stack::clients::{Client, Made, OrderError, Sent};

const CLIENTS: usize = 6;
/// The least time between two orders of one client.
const PACE: Duration = Duration::from_millis(150);
/// More than a day of them.
const ORDERS_MAX: u32 = 5_000_000;
/// Longer than anything that is killed needs to come back.
const ORDER_SECONDS_MAX: u64 = 90;

/// What the clients know in the end.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) made: Vec<Made>,
    /// Keys of payments without an answer.
    pub(super) in_doubt: Vec<String>,
    /// Payments whose refund has no answer.
    pub(super) refunds_in_doubt: Vec<String>,
    pub(super) wrong: Vec<String>,
    pub(super) sent: Option<Sent>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    over: AtomicBool,
    next: AtomicU32,
    asked: Mutex<Asked>,
}

/// The clients at work.
#[derive(Debug)]
pub(super) struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    pub(super) fn start(client: Client) -> Self {
        let (over, next, asked) = (AtomicBool::new(false), AtomicU32::new(0), Mutex::default());
        let shared = Arc::new(Shared { client, over, next, asked });
        let begin = || {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.ask())
        };
        Self { threads: (0..CLIENTS).map(|_| begin()).collect(), shared }
    }

    /// Orders that were answered so far.
    pub(super) fn answered(&self) -> usize {
        self.shared.asked().made.len()
    }

    /// Whether a wrong answer came.
    pub(super) fn check(&self) -> Result<(), String> {
        self.shared.asked().wrong.first().cloned().map_or(Ok(()), Err)
    }

    /// Lets every client finish its order, and returns what they know.
    pub(super) fn stop(self) -> Asked {
        self.shared.over.store(true, Ordering::SeqCst);
        for thread in self.threads {
            if thread.join().is_err() {
                self.shared.asked().wrong.push("a client thread panicked".to_owned());
            }
        }
        let mut asked = std::mem::take(&mut *self.shared.asked());
        asked.sent = Some(self.shared.client.sent());
        asked
    }
}

impl Shared {
    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self) {
        while !self.over.load(Ordering::SeqCst) {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            if n >= ORDERS_MAX {
                return;
            }
            let ended = self.client.order(n, Patience::new(ORDER_SECONDS_MAX));
            self.asked().note(ended);
            std::thread::sleep(PACE);
        }
    }
}

impl Asked {
    fn note(&mut self, ended: Result<Made, OrderError>) {
        match ended {
            Ok(made) => self.made.push(made),
            Err(OrderError::InDoubt { paid: Some(made), .. }) => {
                self.refunds_in_doubt.push(made.payment.clone());
                self.made.push(made);
            }
            Err(OrderError::InDoubt { key, .. }) => self.in_doubt.push(key),
            Err(OrderError::Wrong(why)) => self.wrong.push(why),
        }
    }
}
