//! Finding the one intent a command is about.

use semel::store::{AnyStore, Filter, PAGE_RECORDS_MAX, Record, Store};
use semel::{Intent, IntentId, Key, Operation, Scope};

use crate::args::Target;
use crate::failure::Failed;

/// Fewest digits of an id that are worth looking for.
const PREFIX_DIGITS_MIN: usize = 8;
/// Most records looked at for an id that was not given in full.
const PREFIX_RECORDS_MAX: usize = 100_000;

/// A record, and how sure it is that it is the one that was meant.
pub(crate) struct Found {
    pub(crate) record: Record,
    /// Nothing else can have been meant. False where the store has more records than were looked at for
    /// another id with the same first digits.
    pub(crate) surely: bool,
}

impl Found {
    /// The record, where something is going to be decided about it.
    pub(crate) fn decidable(self) -> Result<Record, Failed> {
        if self.surely {
            return Ok(self.record);
        }
        Err(Failed::not_done(format!(
            "only the newest {PREFIX_RECORDS_MAX} intents were looked at for that id; give all of it: {}",
            self.record.intent.id()
        )))
    }
}

/// Finds it, or says what to do.
pub(crate) async fn find(store: &AnyStore, target: &Target) -> Result<Found, Failed> {
    let id = match (&target.id, &target.key) {
        (Some(text), _) => match text.parse::<IntentId>() {
            Ok(id) => id,
            Err(_) => return find_prefix(store, text).await,
        },
        (None, Some(key)) => intent(target, key)?.id(),
        (None, None) => return Err(Failed::usage("say which intent: an ID, or --operation and --key")),
    };
    match store.get(id).await? {
        Some(record) => Ok(Found { record, surely: true }),
        None => Err(not_found(&id.to_string(), target.key.is_some())),
    }
}

fn not_found(id: &str, by_key: bool) -> Failed {
    let hint = if by_key {
        "check tenant, operation and key, or that it is not swept; `semel ls` lists all"
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

/// Walks through the newest records. Ids are digests of what callers choose, so two with the same first digits
/// can be made on purpose: all are looked at, the first match is not taken for the only one.
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
    let surely = filter.after.is_none();
    match found {
        Some(record) => Ok(Found { record, surely }),
        None if surely => Err(not_found(&format!("{prefix}…"), false)),
        None => Err(Failed::not_done(format!(
            "no intent {prefix}… among the newest {PREFIX_RECORDS_MAX}; give its id in full, or --operation and --key"
        ))),
    }
}
