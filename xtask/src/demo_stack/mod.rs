//! `cargo xtask demo-stack`: everything from a careless client to a consumer, and what was counted on the way.
//!
//! ```text
//!  clients ─▶ semel gateway ─▶ payments ─▶ PostgreSQL ─▶ semel relay ─▶ Kafka ─▶ payments notify ─▶ notifications
//! ```
//!
//! Nothing here asks semel what it did: payments, events and notifications are counted by plain SQL, what is in Kafka
//! by Kafka's own console consumer. With `--chaos` everything is killed in turn while clients ask.

mod arrived;
mod chaos;
mod clients;
mod duration;
mod parts;
mod stack;
mod tables;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use self::arrived::Arrived;
use self::stack::Stack;
use self::tables::Tables;

/// A run that takes longer than this hangs. Building does not count.
const RUN_SECONDS_MAX: u64 = 240;

/// Payments through the gateway, their events to Kafka, notifications of them, and a table of the counts.
///
/// Starts PostgreSQL, Redis, Kafka, the reference service, the gateway in front of it, `semel relay` behind it and
/// the consumer of what it relays; sends payments and refunds, many of them several times and some cut off before the
/// answer; reads the events with Kafka's own console consumer, and counts the notifications. Stops everything it
/// started. Exits with 1 when something is missing, duplicated or unexpected.
///
/// With --chaos it goes on for that long while each part is killed (-9) in turn and started again: gateway, service,
/// relay and consumer, and PostgreSQL, Redis and Kafka unless their addresses come from the environment.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// How many payments.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    payments: u32,
    /// How the relay reads the outbox.
    #[arg(long, value_enum, default_value_t = Mode::Cdc)]
    mode: Mode,
    /// Keep everything running after the count, and print the addresses, until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// Kill everything in turn for this long (90s, 10m, 2h) while clients ask.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with_all = ["payments", "keep"])]
    chaos: Option<Duration>,
    /// One JSON object instead of the table.
    #[arg(long, requires = "chaos")]
    json: bool,
    /// A bug that has to be found: no-inbox.
    #[arg(long, hide = true, requires = "chaos", value_parser = ["no-inbox"])]
    planted: Option<String>,
    /// Use the programs beside this one as they are: they were built with all features.
    #[arg(long, hide = true)]
    as_built: bool,
}

/// How the relay reads the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// By polling the table.
    Poll,
    /// From PostgreSQL's log (change data capture).
    Cdc,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Cdc => "cdc",
        }
    }
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Bounds a run, and ends it early on Ctrl-C.
#[derive(Debug, Clone, Copy)]
struct Patience {
    until: Instant,
    seconds: u64,
}

impl Patience {
    fn new(seconds: u64) -> Self {
        Self { until: Instant::now() + Duration::from_secs(seconds), seconds }
    }

    fn check(self, what: &str) -> Result<(), String> {
        if INTERRUPTED.load(Ordering::SeqCst) {
            return Err("interrupted".to_owned());
        }
        match Instant::now() < self.until {
            true => Ok(()),
            false => Err(format!("timed out after {} s: {what}", self.seconds)),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::SeqCst)).map_err(|error| error.to_string())?;
    if !arguments.as_built {
        stack::build()?;
    }
    let mut stack = Stack::start(arguments.mode, arguments.planted.clone(), arguments.chaos.is_some())?;
    let shown = match arguments.chaos {
        Some(duration) => chaos::run(&mut stack, duration, arguments.json),
        None => show(arguments, &stack, Patience::new(RUN_SECONDS_MAX)),
    };
    if arguments.keep && shown.is_ok() {
        stack.tell();
        while !INTERRUPTED.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    if shown.is_err() {
        stack.tell_logs();
    }
    shown.and(stack.end())
}

fn show(arguments: &Arguments, stack: &Stack, patience: Patience) -> Result<(), String> {
    eprintln!("  clients       {} payments through the gateway …", arguments.payments);
    let client = clients::Client::new(stack.address(), stack.merchant());
    let sent = clients::send(&client, arguments.payments, patience)?;
    eprintln!("  notifications of what arrives at the consumer …");
    let tables = Tables::wait_for_notifications(stack, patience)?;
    eprintln!("  Kafka's own   consumer, reading {} and {} …", arrived::TOPICS[0], arrived::TOPICS[1]);
    let arrived = Arrived::wait_for(stack, &tables, patience)?;
    // A duplicate may come late.
    let tables = Tables::read(stack)?;
    print!("{}", table(&sent, &tables, &arrived));
    let wrong = wrong(&sent, &tables, &arrived);
    if wrong.is_empty() {
        println!(
            "every payment and every refund was made once, published once, arrived once, and was notified once"
        );
        return Ok(());
    }
    Err(wrong.join("; "))
}

fn table(sent: &clients::Sent, tables: &Tables, arrived: &Arrived) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "\n{} requests for {} payments and {} refunds: {} of them again, {} cut off before the answer\n",
        sent.requests, sent.payments, sent.refunds, sent.again, sent.cut
    );
    let heads = ["database", "outbox", "Kafka", "once", "twice", "missing", "notified"];
    let _ = write!(out, "{:<20}", "");
    heads.iter().for_each(|head| {
        let _ = write!(out, "{head:>10}");
    });
    out.push('\n');
    for kind in tables::KINDS {
        let (made, in_outbox, came) = (tables.made(kind), tables.in_outbox(kind), arrived.of(kind));
        let _ = write!(out, "{kind:<20}");
        for number in [made, in_outbox, came.total, came.once, came.twice, came.missing] {
            let _ = write!(out, "{number:>10}");
        }
        let notified = match tables::NOTIFIED.contains(&kind) {
            true => tables.notified(kind).0.to_string(),
            false => "–".to_owned(),
        };
        let _ = writeln!(out, "{notified:>10}");
    }
    out.push('\n');
    out
}

/// What differs; empty when all is well.
fn wrong(sent: &clients::Sent, tables: &Tables, arrived: &Arrived) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut same = |what: String, is: usize, wanted: usize| {
        if is != wanted {
            wrong.push(format!("{what}: {is} instead of {wanted}"));
        }
    };
    same("payments in the database".to_owned(), tables.made("payment.completed"), sent.payments);
    same("refunds in the database".to_owned(), tables.made("payment.refunded"), sent.refunds);
    for kind in tables::KINDS {
        let (made, came) = (tables.made(kind), arrived.of(kind));
        same(format!("{kind} in the outbox"), tables.in_outbox(kind), made);
        same(format!("{kind} in Kafka"), came.total, made);
        same(format!("{kind} that came once"), came.once, made);
    }
    for kind in tables::NOTIFIED {
        let (rows, different) = tables.notified(kind);
        same(format!("notifications of {kind}"), rows, tables.made(kind));
        same(format!("{kind} that were notified of"), different, tables.made(kind));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_comes_twice_is_wrong() {
        let sent = clients::Sent { payments: 2, refunds: 0, requests: 5, again: 3, cut: 0 };
        let tables = Tables::sample();
        let all = [
            ("payment.completed", "pay_1"),
            ("payment.completed", "pay_2"),
            ("payment.recorded", "pay_1"),
            ("payment.recorded", "pay_2"),
            // Of an earlier run.
            ("payment.completed", "pay_0"),
        ];
        assert!(wrong(&sent, &tables, &Arrived::sample(&all, &tables)).is_empty());
        assert!(table(&sent, &tables, &Arrived::sample(&all, &tables)).contains("payment.completed"));
        let missing = wrong(&sent, &tables, &Arrived::sample(&all[1..], &tables));
        assert_eq!(missing[0], "payment.completed in Kafka: 1 instead of 2");
        let twice = [&all[..], &all[..1]].concat();
        let twice = wrong(&sent, &tables, &Arrived::sample(&twice, &tables));
        assert_eq!(twice[1], "payment.completed that came once: 1 instead of 2");
        let lost = clients::Sent { payments: 3, ..sent };
        assert_eq!(wrong(&lost, &tables, &Arrived::sample(&all, &tables)).len(), 1);
        let doubled = Tables::sample().with_a_double();
        let notified = wrong(&lost, &doubled, &Arrived::sample(&all, &tables));
        assert_eq!(notified[1], "notifications of payment.completed: 3 instead of 2");
    }
}
