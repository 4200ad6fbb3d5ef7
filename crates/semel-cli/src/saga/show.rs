//! `semel saga show`

use std::fmt::Write;

use semel::saga::{Loaded, Signal, is_protected};
use semel::{Intent, Key, Operation, Scope, StoreTime};
use serde::Serialize;
use serde_json::Value;

use super::advice::Advice;
use super::args::Show;
use super::ls::{scope_text, status_text};
use super::open::{current_step, open_steps};
use super::view::{
    EntryView, OpenView, SagaView, SignalView, decided_by, entry_line, entry_step, json_value, note,
    outcome_value,
};
use super::{Sagas, no_saga};
use crate::duration;
use crate::failure::Failed;
use crate::moment::rfc3339;
use crate::show::shown_body;
use crate::stdout;
use crate::table::{Side, Table, printable, short};

/// The name of the signal that records a cancellation.
const CANCEL: &str = "/cancel";

#[derive(Serialize)]
struct ShowView {
    #[serde(flatten)]
    saga: SagaView,
    input: Value,
    /// The result, or why it was undone.
    outcome: Option<Value>,
    entries: Vec<EntryView>,
    signals: Vec<SignalView>,
    open: Vec<OpenView>,
    next: Advice,
}

pub(super) async fn run(sagas: &Sagas, args: &Show, json: bool) -> Result<(), Failed> {
    let number = match (args.number, &args.key) {
        (Some(number), _) => number,
        (None, Some(key)) => number_of(sagas, args, key).await?,
        (None, None) => return Err(Failed::usage("give a saga: its NUMBER, or --name and --key")),
    };
    let Some(loaded) = sagas.load(number).await? else { return Err(no_saga(number)) };
    if json {
        return stdout::json(&view(&loaded, args));
    }
    stdout::text(&text(&loaded, args))
}

/// By what the saga was started with: its intent's operation is its name.
async fn number_of(sagas: &Sagas, args: &Show, key: &str) -> Result<u64, Failed> {
    let usage = |error: &dyn std::fmt::Display| Failed::usage(error.to_string());
    let scope = match (&args.scope, &args.tenant) {
        (Some(text), _) => Scope::from_text(text).map_err(|error| usage(&error))?,
        (None, Some(tenant)) => Scope::tenant(tenant).map_err(|error| usage(&error))?,
        (None, None) => Scope::single_tenant(),
    };
    let name = args.name.as_deref().unwrap_or_default();
    let operation = Operation::new(name).map_err(|error| usage(&error))?;
    let intent = Intent::new(scope, operation, Key::new(key).map_err(|error| usage(&error))?);
    match sagas.admin.find(intent.id()).await? {
        Some(record) => Ok(record.number.0),
        None => Err(Failed::not_done(
            "there is no saga with this name, tenant and key; check them; it may also have expired: `semel saga ls` \
             lists all",
        )),
    }
}

fn view(loaded: &Loaded, args: &Show) -> ShowView {
    let (record, entries) = (&loaded.record, &loaded.entries);
    ShowView {
        saga: SagaView::new(record, current_step(entries), loaded.now, args.show_keys),
        input: json_value(&record.input),
        outcome: outcome_value(record),
        entries: entries.iter().map(EntryView::new).collect(),
        signals: loaded.signals.iter().map(SignalView::new).collect(),
        open: open(loaded),
        next: Advice::new(loaded, &args.url),
    }
}

fn open(loaded: &Loaded) -> Vec<OpenView> {
    let row = &loaded.record.row;
    if row.status.is_ended() {
        return Vec::new();
    }
    open_steps(&loaded.entries, row.undo.is_some()).iter().map(OpenView::new).collect()
}

fn text(loaded: &Loaded, args: &Show) -> String {
    let (record, now) = (&loaded.record, loaded.now);
    let (row, intent) = (&record.row, &record.intent);
    let ago = |time: StoreTime| format!("{}, {} ago", rfc3339(time), duration::shown(now.since_ms(time)));
    let until = |time: StoreTime| match time > now {
        true => format!("{}, in {}", rfc3339(time), duration::shown(time.since_ms(now))),
        false => ago(time),
    };
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<10} {value}");
    };
    line("saga", format!("{}, {} version {}", record.number.0, printable(&record.name), record.version));
    line("status", status_text(row));
    if let (Some(_), Some(cause)) = (row.reason, row.undo) {
        line("cause", format!("{}: it is being undone", cause.as_str()));
    }
    line("scope", scope_text(record));
    line(
        "key",
        match args.show_keys {
            true => printable(intent.key().as_str()),
            false => format!("#{} (--show-keys shows it)", intent.key().short_hash()),
        },
    );
    line("intent", intent.id().to_string());
    line("epoch", row.epoch.to_string());
    line("created", ago(record.created_at));
    if let Some(worker) = row.worker {
        line("worker", worker.0.to_string());
    }
    if let Some(due) = row.due_at {
        line("due", until(due));
    }
    if let Some(deadline) = row.deadline {
        line("deadline", until(deadline));
    }
    if row.status.is_ended() {
        line("expires", row.expires_at.map_or_else(|| "never".to_owned(), until));
    }
    if is_protected(&record.input) {
        line("sealed", "its values; name the keys with --keys file:PATH or env:NAME".to_owned());
    }
    line("input", value_text(&json_value(&record.input)));
    if let Some(outcome) = outcome_value(record) {
        line("outcome", value_text(&outcome));
    }
    for signal in &loaded.signals {
        line("signal", signal_text(signal, row.cancelled));
    }
    let _ = write!(text, "\n{}\n{}", journal(loaded), Advice::new(loaded, &args.url));
    text
}

fn value_text(value: &Value) -> String {
    let whole = value.to_string();
    shown_body(whole.as_bytes())
        .map_or_else(|| format!("{} (--json has all of it)", short(&whole)), printable)
}

fn signal_text(signal: &Signal, cancelled: bool) -> String {
    match note(&signal.body).filter(|_| signal.name == CANCEL) {
        Some((by, why)) => {
            // Recorded before it is asked for: it may have come too late.
            let how = if cancelled { "cancelled" } else { "asked too late to be cancelled" };
            format!("{how} by {}: {}", printable(&by), printable(&why))
        }
        None => format!(
            "{} {}, id {}",
            printable(&signal.name),
            short(&json_value(&signal.body).to_string()),
            printable(&signal.id)
        ),
    }
}

/// One line for each entry, in order.
fn journal(loaded: &Loaded) -> String {
    if loaded.entries.is_empty() {
        return "Its journal is empty: no step was begun.\n".to_owned();
    }
    let mut table = Table::new([
        ("SEQ", Side::Right),
        ("TIME", Side::Left),
        ("STEP", Side::Left),
        ("OP", Side::Left),
        ("TRY", Side::Right),
        ("WHAT", Side::Left),
        ("SAFE UNTIL", Side::Left),
        ("DETAILS", Side::Left),
    ]);
    for entry in &loaded.entries {
        // Who and why are shown whole: that is what they were recorded for.
        let details = entry_line(entry);
        table.row([
            entry.seq.to_string(),
            rfc3339(entry.at),
            printable(&entry_step(entry)),
            entry.op.as_str().to_owned(),
            entry.attempt.to_string(),
            entry.kind.as_str().to_owned(),
            entry.safe_until.map_or_else(|| "-".to_owned(), rfc3339),
            if decided_by(entry).is_some() { printable(&details) } else { short(&details) },
        ]);
    }
    table.take()
}
