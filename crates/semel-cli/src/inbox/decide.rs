//! `semel inbox retry` and `drop`

use semel::inbox::dead_letter::DeadLetterStore;
use serde_json::json;

use super::args::{Drop, Retry};
use super::dead::listing;
use crate::confirm::confirmed;
use crate::failure::Failed;
use crate::stdout;

fn not_there(number: i64) -> Failed {
    Failed::not_done(format!(
        "there is no dead letter {number}; nothing was changed: `semel inbox dead` lists them"
    ))
}

pub(super) async fn retry(tables: &DeadLetterStore, args: &Retry, as_json: bool) -> Result<(), Failed> {
    let letters = match args.all {
        true => tables.retry_all(&listing(args.consumer.as_deref(), args.source.as_deref())).await?,
        false => {
            tables.retry(&args.id).await?.map_err(not_there)?;
            args.id.len() as u64
        }
    };
    match as_json {
        true => stdout::json(&json!({ "letters": letters })),
        false => stdout::text(&match letters {
            0 => "no dead letters match\n".to_owned(),
            1 => "1 dead letter will be retried at its consumer's next poll\n".to_owned(),
            letters => format!("{letters} dead letters will be retried at their consumers' next poll\n"),
        }),
    }
}

pub(super) async fn give_up(tables: &DeadLetterStore, args: &Drop, as_json: bool) -> Result<(), Failed> {
    let names: Vec<String> = args.id.iter().map(ToString::to_string).collect();
    let what = match &names[..] {
        [one] => format!("dead letter {one} would be deleted and never be retried from here"),
        many => format!("dead letters {} would be deleted and never be retried from here", many.join(", ")),
    };
    confirmed(args.yes, &what)?;
    let gone = tables.give_up(&args.id, &args.why).await?.map_err(not_there)?;
    if as_json {
        let numbers: Vec<i64> = gone.iter().map(|letter| letter.number).collect();
        return stdout::json(&json!({ "dropped": numbers, "why": args.why }));
    }
    let lines = gone.iter().map(|letter| {
        let message = letter.id.as_deref().unwrap_or("message without an id");
        let message = crate::table::printable(message);
        format!("dropped {}: {message} of {}\n", letter.number, crate::table::printable(&letter.source))
    });
    stdout::text(&lines.collect::<String>())
}
