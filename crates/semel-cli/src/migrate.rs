//! `semel migrate`

use semel::{inbox, outbox, store};
use serde_json::json;

use crate::args::{Migrate, Switch};
use crate::failure::Failed;
use crate::stdout;

pub(crate) async fn run(args: &Migrate, url: &str, as_json: bool) -> Result<(), Failed> {
    let strict = args.strict_order.map(|switch| switch == Switch::On);
    if args.print {
        let sql = match (&args.outbox, &args.inbox, strict) {
            // Without the tables, which may exist already.
            (Some(url), _, Some(on)) => outbox::strict_order_schema(outbox::dialect(url)?, on)?,
            (Some(url), _, None) => outbox::schema(outbox::dialect(url)?),
            (None, Some(url), _) => inbox::schema(inbox::dialect(url)?),
            (None, None, _) => store::schema(url)?,
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
            false => stdout::text(&format!("new lineage {lineage}; everything cached before is invalid\n")),
        };
    }
    let (store::Migrated { before, now }, what) = match (&args.outbox, &args.inbox, strict) {
        (Some(url), _, Some(on)) => (outbox::strict_order(url, on).await?, "outbox: "),
        (Some(url), _, None) => (outbox::migrate(url).await?, "outbox: "),
        (None, Some(url), _) => (inbox::migrate(url).await?, "inbox: "),
        (None, None, _) => (store::migrate(url).await?, ""),
    };
    if as_json {
        let mut report = json!({ "before": before, "now": now });
        if let Some(on) = strict {
            report["strict_order"] = on.into();
        }
        return stdout::json(&report);
    }
    let order = match strict {
        None => "",
        Some(true) => ", strict order on",
        Some(false) => ", strict order off",
    };
    stdout::text(&match before {
        0 => format!("{what}created, version {now}{order}\n"),
        _ if before == now && strict.is_some() => format!("{what}version {now}{order}\n"),
        _ if before == now => format!("{what}nothing to do, version {now}\n"),
        _ => format!("{what}upgraded from version {before} to {now}{order}\n"),
    })
}
