//! `semel redis`

use semel::store::redis::{Memory, RedisOptions};
use serde_json::json;

use crate::args::RedisCommand;
use crate::failure::Failed;
use crate::stdout;

pub(crate) async fn run(command: &RedisCommand, url: &str, as_json: bool) -> Result<(), Failed> {
    match command {
        RedisCommand::AcceptLoss { yes } => accept_loss(*yes, url, as_json).await,
    }
}

async fn accept_loss(yes: bool, url: &str, as_json: bool) -> Result<(), Failed> {
    let options = RedisOptions::new(url)?;
    let found = options.clone().memory().await?;
    if found.is_whole() {
        say(&found, false, as_json, "nothing is missing; nothing was changed")?;
        return Ok(());
    }
    if !yes {
        say(&found, false, as_json, "nothing was changed")?;
        return Err(Failed::not_done(
            "once the loss is accepted, what Redis has lost may run again; find out what was lost, then add --yes",
        ));
    }
    let now = options.accept_loss().await?;
    say(&now, true, as_json, "the loss is accepted: unknown keys may run again")
}

fn say(memory: &Memory, accepted: bool, as_json: bool, what: &str) -> Result<(), Failed> {
    let Memory { buckets, missing, generations, .. } = memory;
    if as_json {
        return stdout::json(&json!({
            "buckets": buckets, "missing": missing, "generations": generations, "accepted": accepted,
        }));
    }
    let known = match generations.len() {
        0 => "no generation".to_owned(),
        _ => format!("generation {}", generations.join(", ")),
    };
    stdout::text(&format!("{missing} of {buckets} buckets have lost their data ({known}); {what}\n"))
}
