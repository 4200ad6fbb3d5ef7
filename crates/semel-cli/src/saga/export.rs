//! `semel saga export`

use super::args::Export;
use super::{Sagas, no_saga};
use crate::failure::Failed;
use crate::stdout;

pub(super) async fn run(sagas: &Sagas, args: &Export) -> Result<(), Failed> {
    let Some(loaded) = sagas.load(args.number).await? else { return Err(no_saga(args.number)) };
    if loaded.is_protected() {
        return Err(Failed::usage(format!(
            "saga {} is sealed, and the key is missing here, so nothing was exported; open the journal with the key (`--keys \
             file:PATH` or `env:NAME`)",
            args.number
        )));
    }
    let exported = loaded.export().map_err(|error| Failed::not_done(error.to_string()))?;
    stdout::text(&format!("{exported}\n"))
}
