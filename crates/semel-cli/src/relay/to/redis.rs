//! `redis://HOST?…`

use semel::sink::redis_stream::RedisStreamSink;

use super::{AnySink, To, number, time, wrong};
use crate::failure::Failed;
use crate::url::Address;

pub(super) fn open(mut url: Address) -> Result<To, Failed> {
    let mut options = RedisStreamSink::options(&url.base).map_err(wrong)?;
    if let Some(prefix) = url.take("prefix") {
        options = options.prefix(&prefix);
    }
    if let Some(entries) = url.read_option("entries_max", number)? {
        options = options.entries_max(entries);
    }
    if let Some(remember) = url.read_option("remember", time)? {
        options = options.remember(remember);
    }
    if let Some(timeout) = url.read_option("timeout", time)? {
        options = options.timeout(timeout);
    }
    url.finish("prefix, entries_max, remember, timeout")?;
    Ok(To::AtLeastOnce(Box::new(AnySink::Redis(options.open()))))
}
