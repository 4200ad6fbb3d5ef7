//! What a person can do about a saga now, with the command lines for it.

use std::fmt;

use semel::StoreTime;
use semel::saga::{Loaded, Op, ParkReason, SagaRow, Status};
use serde::Serialize;

use super::open::{OpenState, OpenStep, has_begun_pivot, named, open_steps};
use crate::duration;
use crate::table::{printable, short};

#[derive(Serialize)]
pub(super) struct Advice {
    /// What its status means.
    advice: String,
    /// Command lines with placeholders to fill in.
    commands: Vec<String>,
}

impl Advice {
    pub(super) fn new(loaded: &Loaded, url: &str) -> Self {
        let row = &loaded.record.row;
        let commands = Commands { number: loaded.record.number.0, epoch: row.epoch, url: shown_url(url) };
        let now = loaded.now;
        let (advice, commands) = match row.status {
            Status::Parked => parked(loaded, &commands),
            Status::Running if row.cancelled => (asked_to_undo(), Vec::new()),
            Status::Running => {
                ("A worker runs it, or the next free one does.".to_owned(), vec![commands.cancel()])
            }
            Status::Waiting if row.cancelled => (asked_to_undo(), Vec::new()),
            Status::Waiting => (waits(row, now), vec![commands.cancel()]),
            Status::Undoing => {
                ("What happened is being undone. Nothing needs to be done.".to_owned(), Vec::new())
            }
            Status::Completed => (ended("It is done", row, now), Vec::new()),
            Status::Undone => (ended("Everything that happened was undone", row, now), Vec::new()),
            Status::Abandoned => (ended("A person ended it as it was", row, now), Vec::new()),
        };
        Self { advice, commands }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.advice)?;
        self.commands.iter().try_for_each(|command| writeln!(f, "  {command}"))
    }
}

fn asked_to_undo() -> String {
    "It was cancelled: it is undone unless its pivot happens first.".to_owned()
}

fn waits(row: &SagaRow, now: StoreTime) -> String {
    match row.due_at {
        Some(due) if due > now => {
            format!("It goes on in {}, or when a signal comes.", duration::shown(due.since_ms(now)))
        }
        Some(_) => "It is due: the next free worker goes on with it.".to_owned(),
        None => "It goes on when a signal comes: `semel saga signal`.".to_owned(),
    }
}

fn ended(how: &str, row: &SagaRow, now: StoreTime) -> String {
    match row.expires_at {
        Some(at) => format!("{how}. It is kept for another {}.", duration::shown(at.since_ms(now))),
        None => format!("{how}. It is kept forever."),
    }
}

/// What is open in a parked saga, and who can close it how.
fn parked(loaded: &Loaded, commands: &Commands) -> (String, Vec<String>) {
    let row = &loaded.record.row;
    let undoing = row.undo.is_some();
    let open = open_steps(&loaded.entries, undoing);
    let mut text = String::new();
    let mut lines = Vec::new();
    // A result that is not known comes first: nothing else goes on without it.
    let (unknown, other): (Vec<&OpenStep>, Vec<_>) =
        open.iter().partition(|open| open.state == OpenState::Unknown && !open.is_undo());
    let shown = if unknown.is_empty() { &other } else { &unknown };
    for open in shown {
        text += &open_line(open);
        lines.extend(commands.resolve(open));
    }
    if let Some(due) = row.due_at {
        let left = duration::shown(due.since_ms(loaded.now));
        text += &format!("It is looked up again in {left}. You need not wait for that.\n");
    }
    text += what_to_do(row.reason, !unknown.is_empty());
    let finds_out = matches!(row.reason, Some(ParkReason::UnknownResult | ParkReason::GuardExpired));
    if unknown.is_empty() || !finds_out || unknown.iter().any(|open| open.is_repeatable) {
        lines.insert(0, commands.retry());
    }
    if !undoing && !has_begun_pivot(&loaded.entries) {
        lines.push(commands.compensate());
    }
    lines.push(commands.abandon());
    (text, lines)
}

fn what_to_do(reason: Option<ParkReason>, is_unknown: bool) -> &'static str {
    match reason {
        Some(ParkReason::Changed) => {
            "Its code does not fit its journal, or cannot read a result in it; the worker's log says where.\n\
             Deploy code that does, then retry:"
        }
        Some(ParkReason::NoHandler) => {
            "A step of it is not declared; the worker's log says which. Deploy code that declares it, then retry:"
        }
        Some(ParkReason::Panicked) => "Its code panicked. Deploy code that does not, then retry:",
        Some(ParkReason::TooLarge) => {
            "Its journal is full, or a value is too large; the worker's log says which. What can be done:"
        }
        Some(ParkReason::JournalRefused) if is_unknown => {
            "The database refused what it writes; the worker's log says why. Repair that, then retry; or look it up \
             where the effect would be, and record what you found:"
        }
        Some(ParkReason::JournalRefused) => {
            "The database refused what it writes; the worker's log says why. Repair that, then retry:"
        }
        Some(ParkReason::GuardExpired) if is_unknown => {
            "The participant may have forgotten the key, so it is not called again.\n\
             Look it up where the effect would be, then record what you found:"
        }
        _ if is_unknown => "Look it up where the effect would be, then record what you found:",
        Some(ParkReason::UndoStuck) => {
            "Repair the cause, then retry; or undo it by hand, and record that it is undone:"
        }
        Some(ParkReason::ForwardStuck) => {
            "Its pivot has happened, so nothing can be undone. Repair the cause, then retry; or do it by hand, and \
             record the result:"
        }
        None | Some(ParkReason::UnknownResult | ParkReason::GuardExpired) => {
            "Nothing is open any more, so it can go on:"
        }
    }
}

fn open_line(open: &OpenStep) -> String {
    let what = if open.is_undo() { format!("The undo of {}", open.step) } else { named(&open.step, open.op) };
    let pivot = if open.op == Op::Pivot { ", the pivot," } else { "" };
    let state = match open.state {
        OpenState::Unknown => {
            format!("It is not known whether {}{pivot} happened", named(&open.step, open.op))
        }
        OpenState::Failed => format!("{what}{pivot} did not happen"),
        OpenState::Refused => format!("{what}{pivot} was refused"),
    };
    match &open.why {
        Some(why) => format!("{state}: {}.\n", short(why)),
        None => format!("{state}.\n"),
    }
}

/// Command lines about one saga.
struct Commands {
    number: u64,
    epoch: u64,
    url: String,
}

impl Commands {
    /// With the epoch: the decision is about what is shown here, and is refused if that has changed by then.
    fn decision(&self, command: &str, of: &str) -> String {
        let Self { number, epoch, url } = self;
        format!("semel saga {command} {url} {number}{of} --by NAME --why TEXT --epoch {epoch}")
    }

    fn retry(&self) -> String {
        self.decision("retry", "")
    }

    fn compensate(&self) -> String {
        self.decision("compensate", "")
    }

    fn abandon(&self) -> String {
        self.decision("abandon", "") + " --yes"
    }

    fn cancel(&self) -> String {
        format!("semel saga cancel {} {} --by NAME --why TEXT", self.url, self.number)
    }

    fn resolve(&self, open: &OpenStep) -> Vec<String> {
        let step = shell_word(&open.step.to_string());
        if open.is_undo() {
            return vec![self.decision("resolve", &format!(" {step} --applied --undo"))];
        }
        let applied = self.decision("resolve", &format!(" {step} --applied JSON"));
        let not_applied = self.decision("resolve", &format!(" {step} --not-applied"));
        if open.state == OpenState::Unknown { vec![applied, not_applied] } else { vec![applied] }
    }
}

/// Only of a file: the URL of a server may contain a password.
fn shown_url(url: &str) -> String {
    if !url.starts_with("sqlite:") {
        return "URL".to_owned();
    }
    shell_word(url)
}

/// Quoted where a shell would read it otherwise.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/:._-+@,#".contains(c);
    match text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", printable(text).replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use semel::saga::ParkReason;

    use super::{shell_word, shown_url, what_to_do};

    #[test]
    fn each_reason_has_advice_of_its_own() {
        let finds_out = |reason| matches!(reason, ParkReason::UnknownResult | ParkReason::GuardExpired);
        let advice = ParkReason::ALL.map(|reason| what_to_do(Some(reason), finds_out(reason)));
        assert_eq!(advice.iter().collect::<BTreeSet<_>>().len(), advice.len(), "{advice:?}");
        for reason in ParkReason::ALL.into_iter().filter(|reason| !finds_out(*reason)) {
            for is_unknown in [true, false] {
                let advice = what_to_do(Some(reason), is_unknown);
                assert!(!advice.contains("Nothing is open"), "{reason:?}: {advice}");
            }
        }
        let refused = what_to_do(Some(ParkReason::JournalRefused), false);
        assert!(refused.starts_with("The database refused what it writes"), "{refused}");
    }

    #[test]
    fn a_file_is_named_and_a_server_never() {
        assert_eq!(shown_url("sqlite:/var/lib/shop.db"), "sqlite:/var/lib/shop.db");
        assert_eq!(shown_url("sqlite:my shop's.db"), r"'sqlite:my shop'\''s.db'");
        assert_eq!(shown_url("postgres://u:secret@h/db"), "URL");
        assert_eq!((shell_word("charge#0"), shell_word("a;b#0")), ("charge#0".into(), "'a;b#0'".into()));
    }
}
