//! What all parts of one history share.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use semel::Key;

use super::ledger::Ledger;
use super::machine::Machine;
use super::plan::Plan;
use super::server::Server;
use crate::stage::Stage;

/// The tenant of every request.
pub(super) const TENANT: &str = "acme";

/// One history.
pub(super) struct Scene {
    pub(super) stage: Stage,
    pub(super) plan: Plan,
    pub(super) ledger: Ledger,
    pub(super) server: Server,
    pub(super) machine: Machine,
    orders: Mutex<Vec<Option<Order>>>,
}

/// What the application keeps with each order, whatever happens to its processes.
#[derive(Clone)]
pub(super) struct Order {
    pub(super) key: Key,
    /// By the machine's wall clock.
    pub(super) first_sent: SystemTime,
}

impl Scene {
    pub(super) fn new(plan: &Plan, stage: &Stage) -> Self {
        let intents = plan.intents.len();
        Self {
            stage: stage.clone(),
            plan: plan.clone(),
            ledger: Ledger::new(intents),
            server: Server::default(),
            machine: Machine::new(plan.settings.processes),
            orders: Mutex::new(vec![None; intents]),
        }
    }

    /// Nothing fails any more.
    pub(super) fn is_calm(&self) -> bool {
        self.stage.elapsed() >= Duration::from_millis(self.plan.calm_at_ms)
    }

    fn orders(&self) -> MutexGuard<'_, Vec<Option<Order>>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The order of an intent, and whether it is new. The key is made when the user decides.
    pub(super) fn order(&self, intent: usize) -> (Order, bool) {
        let now = self.machine.wall(&self.stage);
        let mut orders = self.orders();
        if let Some(order) = &orders[intent] {
            return (order.clone(), false);
        }
        let text = match self.plan.settings.time_ordered {
            true => time_ordered(now, intent),
            false => format!("order-{intent}"),
        };
        let key = Key::new(text).expect("printable and short");
        let order = Order { key, first_sent: now };
        orders[intent] = Some(order.clone());
        (order, true)
    }

    /// The key of an intent that was ordered.
    pub(super) fn key_of(&self, intent: usize) -> Option<Key> {
        self.orders()[intent].as_ref().map(|order| order.key.clone())
    }

    /// The intent of a key.
    pub(super) fn intent_of(&self, key: &str) -> Option<usize> {
        self.orders().iter().position(|order| order.as_ref().is_some_and(|order| order.key.as_str() == key))
    }

    /// Ends everything, so that nothing is kept in memory by parts that hold each other.
    pub(super) fn end(&self) {
        self.server.end();
        self.machine.end();
    }
}

/// A UUIDv7 of that moment and that number.
fn time_ordered(at: SystemTime, number: usize) -> String {
    let ms = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64 & 0xffff_ffff_ffff;
    format!("{:08x}-{:04x}-7000-8000-{number:012x}", ms >> 16, ms & 0xffff)
}
