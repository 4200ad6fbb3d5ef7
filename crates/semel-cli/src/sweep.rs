//! `semel sweep`

use std::io::IsTerminal;

use semel::store::{AnyStore, Store};
use serde_json::json;

use crate::args::Sweep;
use crate::failure::Failed;
use crate::stdout;
use crate::table::thousands;

/// Without a terminal, one line of progress per this many records, not one per batch.
const REPORT_EVERY: u64 = 100_000;

pub(crate) async fn run(store: &AnyStore, args: &Sweep, as_json: bool) -> Result<(), Failed> {
    let live = std::io::stderr().is_terminal();
    let mut total: u64 = 0;
    let mut reported = 0;
    let ended = loop {
        let batch = args.limit.map_or(args.batch, |limit| args.batch.min(limit - total));
        if batch == 0 {
            break Ok(());
        }
        match store.sweep(batch as usize).await {
            Ok(0) => break Ok(()),
            Ok(swept) => total += swept as u64,
            Err(error) => break Err(error),
        }
        if live {
            eprint!("\rswept {}", thousands(total));
        } else if total - reported >= REPORT_EVERY {
            reported = total;
            eprintln!("swept {}", thousands(total));
        }
    };
    if live && total > 0 {
        eprintln!();
    }
    // Printed also if the store failed later: these records are deleted.
    match as_json {
        true => stdout::json(&json!({ "swept": total }))?,
        false => stdout::text(&format!("{total}\n"))?,
    }
    Ok(ended?)
}
