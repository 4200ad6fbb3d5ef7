//! `semel inbox`: messages that could not be handled, and what a person decides about them.

mod args;
mod dead;
mod decide;
mod ls;
mod show;

use semel::inbox::dead_letter::DeadLetterStore;

pub(crate) use self::args::Inbox;
use self::args::InboxCommand;
use crate::failure::Failed;

pub(crate) async fn run(args: &Inbox, json: bool) -> Result<(), Failed> {
    let Some(url) = args.inbox.as_deref() else {
        return Err(Failed::usage(
            "which database has the inbox is not set; give --inbox postgres://…, mysql://… or sqlite:PATH, or set \
             SEMEL_INBOX",
        ));
    };
    let tables = DeadLetterStore::open(url).await?;
    match &args.command {
        InboxCommand::Ls => ls::run(&tables, json).await,
        InboxCommand::Dead(args) => dead::run(&tables, args, json).await,
        InboxCommand::Show(args) => show::run(&tables, args, json).await,
        InboxCommand::Retry(args) => decide::retry(&tables, args, json).await,
        InboxCommand::Drop(args) => decide::give_up(&tables, args, json).await,
    }
}
