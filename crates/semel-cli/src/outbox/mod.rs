//! `semel outbox`: what a person sees of events, and decides about them.

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
            "say which database has the outbox: --from postgres://…, mysql://… or sqlite:PATH, or SEMEL_FROM",
        ));
    };
    // Decided where the lineage is wrong, and there the outbox does not open.
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
