//! `semel outbox retry`, `skip` and `rebase`

use serde_json::json;

use super::any_outbox::AnyOutbox;
use super::args::{Rebase, Retry, Skip};
use crate::confirm::confirmed;
use crate::failure::Failed;
use crate::stdout;

pub(super) async fn retry(outbox: &AnyOutbox, args: &Retry, as_json: bool) -> Result<(), Failed> {
    let keys = outbox.retry(args.key.as_deref()).await?;
    if keys == 0
        && let Some(key) = &args.key
    {
        return Err(Failed::not_done(format!(
            "nothing is parked under the key {key:?}; `semel outbox parked` lists what is"
        )));
    }
    match as_json {
        true => stdout::json(&json!({ "keys": keys })),
        false => stdout::text(&match keys {
            0 => "nothing is parked\n".to_owned(),
            1 => "1 key will be retried at the relay's next poll\n".to_owned(),
            keys => format!("{keys} keys will be retried at the relay's next poll\n"),
        }),
    }
}

pub(super) async fn skip(outbox: &AnyOutbox, args: &Skip, as_json: bool) -> Result<(), Failed> {
    let id = args.id;
    confirmed(args.yes, &format!("event {id} would be deleted and never be published"))?;
    if !outbox.skip(id, args.topic.as_deref()).await? {
        return Err(Failed::not_done(format!(
            "event {id} is not parked; `semel outbox parked` lists what is"
        )));
    }
    match as_json {
        true => stdout::json(&json!({ "skipped": id.to_string() })),
        false => stdout::text(&format!("skipped {id}; the events held behind it continue\n")),
    }
}

pub(super) async fn rebase(url: &str, args: &Rebase, as_json: bool) -> Result<(), Failed> {
    if args.from_now {
        confirmed(args.yes, "events in the outbox that were not published never would be")?;
    }
    let to = match args.everything {
        true => semel::relay::Rebase::Everything,
        false => semel::relay::Rebase::FromNow,
    };
    AnyOutbox::rebase(url, to).await?;
    let name = if args.everything { "everything" } else { "from_now" };
    match as_json {
        true => stdout::json(&json!({ "rebased": name })),
        false => stdout::text(match args.everything {
            true => "the relay will publish everything in the outbox, some of it again: same ids\n",
            false => "everything in the outbox counts as published; the relay continues with new events\n",
        }),
    }
}
