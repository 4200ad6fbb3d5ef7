//! Finding the one intent a command is about.

use semel::store::{AnyStore, Filter, PAGE_RECORDS_MAX, Record, Store};
use semel::{Intent, IntentId, Key, Operation, Scope};

use crate::args::Target;
use crate::failure::Failed;

/// Fewest digits of an id that are searched for.
const PREFIX_DIGITS_MIN: usize = 8;
/// Most records searched for an id that was not given in full.
const PREFIX_RECORDS_MAX: usize = 100_000;

/// A record, and whether it is the only match.
pub(crate) struct Found {
    pub(crate) record: Record,
    /// No other record matches. False if the store has more records than were searched for another id with the same
    /// first digits.
    pub(crate) unique: bool,
}

impl Found {
    /// The record, if it is unique: a decision must not hit another one.
    pub(crate) fn decidable(self) -> Result<Record, Failed> {
        if self.unique {
            return Ok(self.record);
        }
        Err(Failed::not_done(format!(
            "only the newest {PREFIX_RECORDS_MAX} intents were searched for that id; give the full id: {}",
            self.record.intent.id()
        )))
    }
}

/// Finds the intent; the error says what to do instead.
pub(crate) async fn find(store: &AnyStore, target: &Target) -> Result<Found, Failed> {
    let id = match (&target.id, &target.key) {
        (Some(text), _) => match text.parse::<IntentId>() {
            Ok(id) => id,
            Err(_) => return find_prefix(store, text).await,
        },
        (None, Some(key)) => intent(target, key)?.id(),
        (None, None) => return Err(Failed::usage("give an intent: an ID, or --operation and --key")),
    };
    match store.get(id).await? {
        Some(record) => Ok(Found { record, unique: true }),
        None => Err(not_found(&id.to_string(), target.key.is_some())),
    }
}

fn not_found(id: &str, by_key: bool) -> Failed {
    let hint = if by_key {
        "check tenant, operation and key; it may also have expired: `semel ls` lists all"
    } else {
        "it may have expired; `semel ls` lists all"
    };
    Failed::not_done(format!("no intent {id} in this store; {hint}"))
}

fn intent(target: &Target, key: &str) -> Result<Intent, Failed> {
    let usage = |error: &dyn std::fmt::Display| Failed::usage(error.to_string());
    let scope = match (&target.scope, &target.tenant) {
        (Some(text), _) => Scope::from_text(text).map_err(|error| usage(&error))?,
        (None, Some(tenant)) => Scope::tenant(tenant).map_err(|error| usage(&error))?,
        (None, None) => Scope::single_tenant(),
    };
    let operation = target.operation.as_deref().unwrap_or_default();
    let operation = Operation::new(operation).map_err(|error| usage(&error))?;
    Ok(Intent::new(scope, operation, Key::new(key).map_err(|error| usage(&error))?))
}

/// Scans the newest records. Ids are digests of what callers choose, so two with the same first digits can be made on
/// purpose: the scan goes on after the first match to see whether it is the only one.
async fn find_prefix(store: &AnyStore, text: &str) -> Result<Found, Failed> {
    let prefix = text.to_ascii_lowercase();
    let is_hex = prefix.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex || !(PREFIX_DIGITS_MIN..64).contains(&prefix.len()) {
        return Err(Failed::usage(format!(
            "{text:?} is not an intent id; give its 64 hex digits or at least the first {PREFIX_DIGITS_MIN}"
        )));
    }
    let mut found: Option<Record> = None;
    let mut filter = Filter { limit: PAGE_RECORDS_MAX, ..Filter::default() };
    let mut seen = 0;
    loop {
        let page = store.list(filter.clone()).await?;
        seen += page.records.len();
        for record in page.records {
            let id = record.intent.id();
            if !id.to_string().starts_with(&prefix) {
                continue;
            }
            if let Some(first) = &found {
                return Err(Failed::not_done(format!(
                    "{prefix} is ambiguous: {} and {id}; give more digits",
                    first.intent.id()
                )));
            }
            found = Some(record);
        }
        filter.after = page.next;
        if filter.after.is_none() || seen >= PREFIX_RECORDS_MAX {
            break;
        }
    }
    let unique = filter.after.is_none();
    match found {
        Some(record) => Ok(Found { record, unique }),
        None if unique => Err(not_found(&format!("{prefix}…"), false)),
        None => Err(Failed::not_done(format!(
            "no intent {prefix}… among the newest {PREFIX_RECORDS_MAX}; give its id in full, or --operation and --key"
        ))),
    }
}
