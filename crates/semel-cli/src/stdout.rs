//! Writes data to stdout, one write per document. A closed pipe is an error here, not a panic.

use std::io::{self, Write};

use serde::Serialize;

use crate::failure::Failed;

/// Writes text as it is.
pub(crate) fn text(text: &str) -> Result<(), Failed> {
    bytes(text.as_bytes())
}

/// Writes one JSON document and ends the line.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failed> {
    let mut line = serde_json::to_string(value).map_err(|error| Failed::not_done(error.to_string()))?;
    line.push('\n');
    text(&line)
}

/// Writes bytes as they are.
pub(crate) fn bytes(bytes: &[u8]) -> Result<(), Failed> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(())
}
