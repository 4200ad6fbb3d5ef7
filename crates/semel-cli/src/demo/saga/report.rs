//! The report of `semel demo --saga`: counts from the ledgers, the clients and the journal.

use serde::Serialize;

use super::settle::Resolved;
use super::verdict::Side;
use crate::table::{Side as Edge, Table, thousands};

/// Parked sagas that the text names.
const SHOWN_MAX: usize = 4;

/// The whole result, as `demo --saga --json` prints it.
#[derive(Default, Serialize)]
pub(super) struct Report {
    pub(super) seed: u64,
    pub(super) orders: u32,
    pub(super) tasks: u32,
    pub(super) elapsed_ms: u64,
    pub(super) without: Side,
    pub(super) with: Side,
    /// Sagas in the journal, by how they ended.
    pub(super) completed: u64,
    pub(super) undone: u64,
    /// Orders whose client was answered that it is not known yet how they end.
    pub(super) answered_parked: u64,
    /// Settled by hand, with the provider's ledger.
    pub(super) resolved: Vec<Resolved>,
    /// Empty when all is well.
    pub(super) wrong: Vec<String>,
}

impl Report {
    pub(super) fn text(&self) -> String {
        let n = thousands;
        let headings =
            [("", Edge::Left), ("WITHOUT SAGAS", Edge::Right), ("WITH SAGAS", Edge::Right), ("", Edge::Left)];
        let mut table = Table::new(headings);
        let mut row = |name: &str, without: String, with: String| {
            table.row([name.to_owned(), without, with, String::new()]);
        };
        row("orders placed", n(self.orders.into()), n(self.orders.into()));
        let mut both = |name: &str, number: fn(&Side) -> u64| {
            row(name, n(number(&self.without)), n(number(&self.with)));
        };
        both("requests, with retries", |side| side.requests);
        both("  of these without an answer", |side| side.unanswered);
        both("workers killed and restarted", |side| side.workers_killed);
        both("orders in the table", |side| side.created);
        both("  of these cancelled", |side| side.cancelled);
        both("reservations at the stock", |side| side.held);
        both("  of these released", |side| side.released);
        both("charges at the provider", |side| side.charged);
        both("mails sent", |side| side.notified);
        both("orders complete: each of these once", |side| side.complete);
        both("orders undone: nothing is left", |side| side.undone);
        both("orders with something twice", |side| side.repeated);
        both("orders half done", |side| side.half_done);
        let charged = self.resolved.iter().filter(|resolved| resolved.charge.is_some()).count() as u64;
        let resolved = self.resolved.len() as u64;
        for (name, number) in [
            ("events published", self.with.published),
            ("parked sagas, resolved by hand", resolved),
            ("  of these charged", charged),
            ("  of these not charged, so it was done then", resolved - charged),
        ] {
            row(name, "-".to_owned(), n(number));
        }
        format!(
            "{} orders from {} clients, seed {}\n\n{}{}",
            n(self.orders.into()),
            self.tasks,
            self.seed,
            table.take(),
            self.parked()
        )
    }

    /// The first of the sagas that were parked, and what was recorded about each.
    fn parked(&self) -> String {
        if self.resolved.is_empty() {
            return String::new();
        }
        let mut text = "\nparked, because it was not known whether the card was charged; the provider's ledger says it:\n".to_owned();
        for resolved in self.resolved.iter().take(SHOWN_MAX) {
            let Resolved { saga, order, step, reason, charge } = resolved;
            let found = match charge {
                Some(id) => format!("--applied '\"{id}\"'"),
                None => "--not-applied".to_owned(),
            };
            text.push_str(&format!(
                "  saga {saga} of {order}: {step} {reason}; semel saga resolve URL {saga} {step} {found}\n"
            ));
        }
        if self.resolved.len() > SHOWN_MAX {
            text.push_str(&format!("  and {} more\n", self.resolved.len() - SHOWN_MAX));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parked_sagas_are_shown_with_the_command_that_settles_them() {
        let resolved = |saga, charge: Option<&str>| Resolved {
            saga,
            order: "order-000007".to_owned(),
            step: "charge#0".to_owned(),
            reason: "unknown_result".to_owned(),
            charge: charge.map(str::to_owned),
        };
        let mut report =
            Report { resolved: vec![resolved(8, Some("charged-3")), resolved(9, None)], ..Report::default() };
        let text = report.text();
        assert!(text.contains("semel saga resolve URL 8 charge#0 --applied '\"charged-3\"'\n"), "{text}");
        assert!(text.contains("semel saga resolve URL 9 charge#0 --not-applied\n"), "{text}");
        assert!(text.contains("parked sagas, resolved by hand") && !text.contains(" more\n"), "{text}");
        report.resolved.extend((10..15).map(|saga| resolved(saga, None)));
        assert!(report.text().ends_with("  and 3 more\n"));
        report.resolved.clear();
        assert!(!report.text().contains("ledger says"));
    }
}
