//! `semel migrate`

use semel::{inbox, outbox, store};
use serde_json::json;

use crate::args::Migrate;
use crate::failure::Failed;
use crate::stdout;

pub(crate) async fn run(args: &Migrate, url: &str, as_json: bool) -> Result<(), Failed> {
    if args.print {
        let sql = match (&args.outbox, &args.inbox) {
            (Some(url), _) => outbox::schema(outbox::dialect(url)?),
            (None, Some(url)) => inbox::schema(inbox::dialect(url)?),
            (None, None) => store::schema(url)?,
        };
        return match as_json {
            true => stdout::json(&json!({ "sql": sql })),
            false => stdout::text(sql),
        };
    }
    if args.new_lineage {
        let lineage = store::new_lineage(url).await?.to_string();
        return match as_json {
            true => stdout::json(&json!({ "lineage": lineage })),
            false => stdout::text(&format!("new lineage {lineage}; nothing cached before counts any more\n")),
        };
    }
    let (store::Migrated { before, now }, what) = match (&args.outbox, &args.inbox) {
        (Some(url), _) => (outbox::migrate(url).await?, "outbox: "),
        (None, Some(url)) => (inbox::migrate(url).await?, "inbox: "),
        (None, None) => (store::migrate(url).await?, ""),
    };
    if as_json {
        return stdout::json(&json!({ "before": before, "now": now }));
    }
    stdout::text(&match before {
        0 => format!("{what}created, version {now}\n"),
        _ if before == now => format!("{what}nothing to do, version {now}\n"),
        _ => format!("{what}upgraded from version {before} to {now}\n"),
    })
}
