//! What an operator can do about an intent, with the command lines for it.

use std::fmt;

use semel::store::Record;
use semel::{State, StoreTime};
use serde::Serialize;

use crate::args::STORE_DEFAULT;
use crate::duration;
use crate::view::state;

#[derive(Serialize)]
pub(crate) struct Advice {
    /// What the state means for callers.
    advice: String,
    /// Command lines with placeholders to fill in.
    commands: Vec<String>,
}

impl Advice {
    pub(crate) fn new(record: &Record, now: StoreTime, url: &str) -> Self {
        let id = record.intent.id();
        let store = store_flag(url);
        // With the epoch: the decision is about the state shown here, and is refused if that has changed by then.
        let epoch = record.head.epoch.0;
        let rest = format!("--by NAME --why TEXT --epoch {epoch}{store}");
        let resolve = |how: &str| format!("semel resolve {id} {how} {rest}");
        let release = |yes: &str| format!("semel release {id}{yes} {rest}");
        let decisions = || vec![resolve("--applied --code 200 --body @FILE"), resolve("--not-applied")];
        let until = match record.head.expires_at {
            Some(at) => format!("for another {}", duration::shown(at.since_ms(now))),
            None => "forever".to_owned(),
        };
        let (advice, commands) = match state(record, now) {
            State::Uncertain if record.head.is_guard_expired(now, 0) => (
                "The other side may have forgotten the key by now, so running it again might do it twice.\n\
                 Look it up where the effect would be, then record what you found:"
                    .to_owned(),
                decisions(),
            ),
            State::Uncertain => (
                "It is unknown whether it happened, so it is not run again.\n\
                 Look it up where the effect would be, then record what you found:"
                    .to_owned(),
                decisions(),
            ),
            State::InProgress if record.head.is_lapsed(now) && record.head.safe_until.is_some() => (
                format!(
                    "Its owner is gone. A call with this key runs it again if it can end {}.\n\
                     If no call will come in time, record what happened:",
                    while_remembered(record, now)
                ),
                decisions(),
            ),
            State::InProgress if record.head.is_lapsed(now) => (
                "Its owner is gone, but it is safe to run again: the next call with this key runs it.\n\
                 If no call will come, record what happened:"
                    .to_owned(),
                decisions(),
            ),
            State::InProgress => (
                format!(
                    "Its owner is working on it. Wait: if the lease is not renewed, it can be decided in {}.",
                    duration::shown(record.head.lease_until.since_ms(now))
                ),
                Vec::new(),
            ),
            State::Completed => (
                format!(
                    "It is done. Calls with this key get this outcome {until}.\n\
                     To do the work again under the same key:"
                ),
                vec![release(" --yes")],
            ),
            State::FailedFinal => (
                format!(
                    "It failed permanently. Calls with this key get this failure {until}.\n\
                     To let the same key run again:"
                ),
                vec![release("")],
            ),
            State::FailedRetryable if record.head.safe_until.is_some() => (
                format!(
                    "It did not happen, or it is safe to run again. A call with this key runs it if it can end {}; \
                     afterwards it is uncertain.",
                    while_remembered(record, now)
                ),
                Vec::new(),
            ),
            State::FailedRetryable => (
                "It did not happen, or it is safe to run again. The next call with this key runs it; nothing needs to \
                 be done."
                    .to_owned(),
                Vec::new(),
            ),
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

/// How long an attempt may take is only known to its operation.
fn while_remembered(record: &Record, now: StoreTime) -> String {
    let left = record.head.safe_until.map(|until| duration::shown(until.since_ms(now)));
    format!("while the other side remembers the key, for another {}", left.unwrap_or_default())
}

/// Only for files: the URL of a server may contain a password.
fn store_flag(url: &str) -> String {
    if url == STORE_DEFAULT || !url.starts_with("sqlite:") {
        return String::new();
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "/:._-+@,".contains(c);
    match url.chars().all(plain) {
        true => format!(" --store {url}"),
        false => format!(" --store '{}'", url.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::store_flag;

    #[test]
    fn the_store_is_named_where_it_has_to_be_and_never_with_a_password() {
        assert_eq!(store_flag("sqlite:semel.db"), "");
        assert_eq!(store_flag("sqlite:/var/lib/semel.db"), " --store sqlite:/var/lib/semel.db");
        assert_eq!(store_flag("sqlite:my file's.db"), r" --store 'sqlite:my file'\''s.db'");
        assert_eq!(store_flag("postgres://u:secret@h/db"), "");
    }
}
