//! `semel outbox`: list and show events, and decide about parked ones.

mod any_outbox;
mod args;
mod decide;
mod ls;
mod parked;
mod show;

pub(crate) use self::any_outbox::{AnyOutbox, Bounds};
pub(crate) use self::args::Outbox;
use self::args::OutboxCommand;
use crate::failure::Failed;

pub(crate) async fn run(args: &Outbox, json: bool) -> Result<(), Failed> {
    let Some(url) = args.from.as_deref() else {
        return Err(Failed::usage(
            "which database has the outbox is not set; give --from postgres://…, mysql://… or sqlite:PATH, or set \
             SEMEL_FROM",
        ));
    };
    // A rebase is needed when the lineage is wrong, and then the outbox cannot be opened.
    if let OutboxCommand::Rebase(args) = &args.command {
        return decide::rebase(url, args, json).await;
    }
    let outbox = AnyOutbox::open(url).await?;
    match &args.command {
        OutboxCommand::Ls(args) => ls::run(&outbox, args, json).await,
        OutboxCommand::Show(args) => show::run(&outbox, args, json).await,
        OutboxCommand::Parked(args) => parked::run(&outbox, args, json).await,
        OutboxCommand::Retry(args) => decide::retry(&outbox, args, json).await,
        OutboxCommand::Skip(args) => decide::skip(&outbox, args, json).await,
        OutboxCommand::Rebase(_) => Ok(()),
    }
}
