//! `sqs://HOST/ACCOUNT/QUEUE.fifo?…`

use semel::sink::sqs::{InDoubt, SqsSink};

use super::{AnySink, To, time, wrong};
use crate::failure::Failed;
use crate::size::parse_bytes;
use crate::url::Address;

pub(super) fn open(mut url: Address) -> Result<To, Failed> {
    // For a test server without TLS.
    let scheme = if url.scheme == "sqs+http" { "http" } else { "https" };
    let mut options = SqsSink::options(&format!("{scheme}://{}", url.rest()));
    if let Some(region) = url.take("region") {
        options = options.region(&region);
    }
    if let Some(bytes) = url.read_option("message_bytes", parse_bytes)? {
        options = options.message_bytes(bytes);
    }
    if let Some(in_doubt) = url.read_option("in_doubt", in_doubt)? {
        options = options.in_doubt(in_doubt);
    }
    if let Some(timeout) = url.read_option("timeout", time)? {
        options = options.timeout(timeout);
    }
    url.finish("region, message_bytes, in_doubt, timeout")?;
    Ok(To::AtLeastOnce(Box::new(AnySink::Sqs(options.open().map_err(wrong)?))))
}

fn in_doubt(text: &str) -> Result<InDoubt, String> {
    match text {
        "park" => Ok(InDoubt::Park),
        "resend" => Ok(InDoubt::Resend),
        _ => Err(format!("{text:?} is not a way to handle an event in doubt; use park, resend")),
    }
}
