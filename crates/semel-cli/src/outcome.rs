//! An outcome built from the flags of `semel resolve`.

use std::fs::File;
use std::io::{self, Read};

use semel::Outcome;
use semel::intent::outcome::OUTCOME_BYTES_MAX;

use crate::args::Resolve;
use crate::failure::Failed;

/// The outcome that later callers get; `None` without `--code`, `--body` and `--header`.
pub(crate) fn given(args: &Resolve) -> Result<Option<Outcome>, Failed> {
    if args.code.is_none() && args.body.is_none() && args.header.is_empty() {
        return Ok(None);
    }
    let code = args.code.unwrap_or(200);
    let outcome = match &args.body {
        Some(body) => Outcome::new(code, read(body)?),
        // Not the same as an empty body: callers learn that it is missing.
        None => Outcome::new(code, "").tombstone(),
    };
    let headers = args.header.iter().cloned();
    let outcome = headers.fold(outcome, |outcome, (name, value)| outcome.header(name, value));
    if outcome.fits() {
        Ok(Some(outcome))
    } else {
        Err(Failed::usage(format!("the outcome is too large; it may have at most {OUTCOME_BYTES_MAX} bytes")))
    }
}

fn read(body: &str) -> Result<Vec<u8>, Failed> {
    let Some(path) = body.strip_prefix('@') else { return Ok(body.as_bytes().to_vec()) };
    let read = || match path {
        "-" => bounded(io::stdin().lock()),
        path => bounded(File::open(path)?),
    };
    read().map_err(|error| Failed::usage(format!("--body {body}: {error}; give a file that can be read")))
}

/// Reads one byte more than fits, which is enough to detect that it is too large.
fn bounded(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(OUTCOME_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
