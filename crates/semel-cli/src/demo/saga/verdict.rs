//! The verdict: what the ledgers of the participants and the table of orders say about each order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use serde::Serialize;

use super::participant::{Line, What};
use super::plan::OrderNo;
use super::process::{Part, database, ledger};
use crate::demo::ledger::read;
use crate::failure::Failed;

const BUSY: Duration = Duration::from_secs(10);

/// What there is of one order.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Traces {
    pub(super) created: u64,
    pub(super) cancelled: u64,
    pub(super) held: u64,
    pub(super) released: u64,
    pub(super) charged: u64,
    pub(super) notified: u64,
    pub(super) published: u64,
}

/// What that comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// Each step once.
    Complete,
    /// Nothing is left of it.
    Undone,
    /// Something happened more than once.
    Repeated,
    /// Some steps, and not the others.
    HalfDone,
}

impl Traces {
    /// What is left of it: orders, reservations, charges, mails.
    fn left(&self) -> [u64; 4] {
        let orders = self.created.saturating_sub(self.cancelled);
        [orders, self.held.saturating_sub(self.released), self.charged, self.notified]
    }

    pub(super) fn class(&self) -> Class {
        match self.left() {
            [1, 1, 1, 1] => Class::Complete,
            [0, 0, 0, 0] => Class::Undone,
            left if left.iter().any(|count| *count > 1) => Class::Repeated,
            _ => Class::HalfDone,
        }
    }

    /// Where sagas ran, nothing may be there twice either that was undone later.
    fn most_at_once(&self) -> u64 {
        let Self { created, cancelled, held, released, charged, notified, published } = *self;
        [created, cancelled, held, released, charged, notified, published]
            .into_iter()
            .max()
            .unwrap_or_default()
    }
}

/// All orders of one side.
#[derive(Default)]
pub(super) struct Ledgers(BTreeMap<OrderNo, Traces>);

/// One side of the report.
#[derive(Default, Serialize)]
pub(super) struct Side {
    pub(super) requests: u64,
    pub(super) unanswered: u64,
    pub(super) failed: u64,
    pub(super) workers_killed: u64,
    pub(super) created: u64,
    pub(super) cancelled: u64,
    pub(super) held: u64,
    pub(super) released: u64,
    pub(super) charged: u64,
    pub(super) notified: u64,
    pub(super) published: u64,
    /// Orders by what they came to.
    pub(super) complete: u64,
    pub(super) undone: u64,
    pub(super) repeated: u64,
    pub(super) half_done: u64,
}

impl Ledgers {
    /// Reads the ledgers and the table in the folder of one side.
    pub(super) fn read(folder: &Path, orders: u32) -> Result<Self, Failed> {
        let mut all: BTreeMap<OrderNo, Traces> =
            (0..orders).map(|n| (OrderNo(n), Traces::default())).collect();
        let mut of = |order: &str, add: &mut dyn FnMut(&mut Traces)| match order.parse::<OrderNo>() {
            Ok(order) if all.contains_key(&order) => {
                all.entry(order).and_modify(add);
                Ok(())
            }
            _ => Err(Failed::not_done(format!("a ledger has an order that was never placed: {order}"))),
        };
        for part in Part::PARTICIPANTS {
            for line in read::<Line>(&ledger(folder, part))? {
                of(&line.order, &mut |traces| match line.what {
                    What::Held => traces.held += 1,
                    What::Released => traces.released += 1,
                    What::Charged => traces.charged += 1,
                    What::Notified => traces.notified += 1,
                })?;
            }
        }
        let unread =
            |error: rusqlite::Error| Failed::not_done(format!("the orders could not be read: {error}"));
        for (order, cancelled) in rows(folder).map_err(unread)? {
            of(&order, &mut |traces| {
                traces.created += 1;
                traces.cancelled += u64::from(cancelled);
            })?;
        }
        for order in published(folder).map_err(unread)? {
            of(&order, &mut |traces| traces.published += 1)?;
        }
        Ok(Self(all))
    }

    /// Adds what is counted from here.
    pub(super) fn count(&self, side: &mut Side) {
        for traces in self.0.values() {
            side.created += traces.created;
            side.cancelled += traces.cancelled;
            side.held += traces.held;
            side.released += traces.released;
            side.charged += traces.charged;
            side.notified += traces.notified;
            side.published += traces.published;
            *match traces.class() {
                Class::Complete => &mut side.complete,
                Class::Undone => &mut side.undone,
                Class::Repeated => &mut side.repeated,
                Class::HalfDone => &mut side.half_done,
            } += 1;
        }
    }

    /// What is wrong where sagas ran: an order that is neither complete nor undone, that did not come to what it had to,
    /// or that ended otherwise than its saga.
    pub(super) fn wrong(
        &self,
        seed: u64,
        completed: &BTreeSet<String>,
        undone: &BTreeSet<String>,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        for (order, traces) in &self.0 {
            let name = order.to_string();
            let class = traces.class();
            let (expected, of_saga) = match order.refusal(seed) {
                Some(_) => (Class::Undone, undone.contains(&name)),
                None => (Class::Complete, completed.contains(&name)),
            };
            let published = u64::from(expected == Class::Complete);
            if class == Class::Repeated || traces.most_at_once() > 1 {
                wrong.push(format!("{name}: something happened more than once: {traces:?}"));
            } else if class != expected {
                wrong.push(format!("{name} is {class:?} and should be {expected:?}: {traces:?}"));
            } else if traces.published != published {
                wrong.push(format!("{name}: {} events instead of {published}", traces.published));
            } else if !of_saga {
                wrong.push(format!("{name} is {class:?}, and its saga ended otherwise"));
            }
        }
        wrong
    }
}

fn open(folder: &Path) -> Result<Connection, rusqlite::Error> {
    let db = Connection::open_with_flags(database(folder), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    db.busy_timeout(BUSY)?;
    Ok(db)
}

fn rows(folder: &Path) -> Result<Vec<(String, bool)>, rusqlite::Error> {
    let db = open(folder)?;
    let mut found = db.prepare("SELECT name, cancelled FROM orders")?;
    found.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// The orders of the events in the outbox; without sagas there is none.
fn published(folder: &Path) -> Result<Vec<String>, rusqlite::Error> {
    let db = open(folder)?;
    let outbox = "SELECT count(*) FROM sqlite_schema WHERE name = 'semel_outbox'";
    if db.query_row(outbox, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(Vec::new());
    }
    let mut found = db.prepare("SELECT CAST(payload AS TEXT) FROM semel_outbox")?;
    found.query_map([], |row| row.get(0))?.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 7;
    const DONE: Traces =
        Traces { created: 1, cancelled: 0, held: 1, released: 0, charged: 1, notified: 1, published: 1 };

    /// One order as it should be, changed by `change`; its saga ended as it should.
    fn wrong(change: impl Fn(&mut Traces)) -> Vec<String> {
        let order = (0..).map(OrderNo).find(|order| order.refusal(SEED).is_none()).unwrap();
        let mut traces = DONE;
        change(&mut traces);
        let completed = BTreeSet::from([order.to_string()]);
        Ledgers(BTreeMap::from([(order, traces)])).wrong(SEED, &completed, &BTreeSet::new())
    }

    #[test]
    fn what_is_not_there_once_is_found() {
        assert_eq!(wrong(|_| {}), Vec::<String>::new());
        for (change, says) in [
            ((|traces| traces.charged = 2) as fn(&mut Traces), "more than once"),
            (|traces| (traces.created, traces.cancelled) = (2, 1), "more than once"),
            (|traces| (traces.held, traces.released) = (2, 1), "more than once"),
            (|traces| traces.notified = 0, "HalfDone"),
            (|traces| traces.released = 1, "HalfDone"),
            (|traces| *traces = Traces::default(), "is Undone and should be Complete"),
            (|traces| traces.published = 0, "0 events"),
        ] {
            let wrong = wrong(change);
            assert!(wrong.len() == 1 && wrong[0].contains(says), "{says}: {wrong:?}");
        }
    }

    #[test]
    fn an_order_that_has_to_be_refused_leaves_nothing() {
        let order = (0..).map(OrderNo).find(|order| order.refusal(SEED).is_some()).unwrap();
        let undone = BTreeSet::from([order.to_string()]);
        let judge =
            |traces, undone| Ledgers(BTreeMap::from([(order, traces)])).wrong(SEED, &BTreeSet::new(), undone);
        let taken_back = Traces { created: 1, cancelled: 1, held: 1, released: 1, ..Traces::default() };
        assert_eq!(judge(taken_back, &undone), Vec::<String>::new());
        let none = BTreeSet::new();
        assert!(judge(taken_back, &none)[0].contains("ended otherwise"));
        assert!(judge(DONE, &undone)[0].contains("should be Undone"));
    }
}
