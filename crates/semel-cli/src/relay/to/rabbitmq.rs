//! `amqp://USER@HOST/VHOST?…`

use semel::sink::rabbitmq::{RabbitmqSink, Unroutable};

use super::{AnySink, To, time};
use crate::failure::Failed;
use crate::url::Address;

/// Options that the driver itself reads from the URL.
const DRIVERS: [&str; 4] = ["channel_max", "connection_timeout", "frame_max", "heartbeat"];

pub(super) fn open(mut url: Address) -> Result<To, Failed> {
    let theirs = url.take_where(|name| DRIVERS.contains(&name));
    let query: Vec<String> = theirs.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let address = match query.is_empty() {
        true => url.base.clone(),
        false => format!("{}?{}", url.base, query.join("&")),
    };
    let mut options = RabbitmqSink::options(&address);
    if let Some(exchange) = url.take("exchange") {
        options = options.exchange(&exchange);
    }
    if let Some(unroutable) = url.read_option("unroutable", unroutable)? {
        options = options.unroutable(unroutable);
    }
    if let Some(timeout) = url.read_option("timeout", time)? {
        options = options.timeout(timeout);
    }
    url.finish("exchange, unroutable, timeout, heartbeat, connection_timeout, channel_max, frame_max")?;
    Ok(To::AtLeastOnce(Box::new(AnySink::Rabbitmq(options.open()))))
}

fn unroutable(text: &str) -> Result<Unroutable, String> {
    match text {
        "wait" => Ok(Unroutable::Wait),
        "refuse" => Ok(Unroutable::Refuse),
        _ => Err(format!("{text:?} is not a way to handle an unroutable event; use wait, refuse")),
    }
}
