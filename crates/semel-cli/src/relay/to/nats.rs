//! `nats://HOST?…`

use semel::sink::nats::NatsSink;

use super::{AnySink, To, time};
use crate::failure::Failed;
use crate::relay::args::SinkFlags;
use crate::url::Address;

pub(super) fn open(mut url: Address, flags: &SinkFlags) -> Result<To, Failed> {
    let mut options = NatsSink::options(&url.base);
    if let Some(stream) = url.take("stream") {
        options = options.stream(&stream);
    }
    if let Some(source) = url.take("cloudevents").or_else(|| flags.cloudevents.clone()) {
        options = options.cloud_events(&source);
    }
    if let Some(timeout) = url.read_option("timeout", time)? {
        options = options.timeout(timeout);
    }
    url.finish("stream, cloudevents, timeout")?;
    Ok(To::AtLeastOnce(Box::new(AnySink::Nats(options.open()))))
}
