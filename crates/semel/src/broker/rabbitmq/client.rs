//! Connections to RabbitMQ, and the short strings of AMQP.

use lapin::types::ShortString;
use lapin::{Channel, Connection, ConnectionProperties};

/// Opens a connection and a channel.
pub(super) async fn dial(url: &str) -> Result<(Connection, Channel), lapin::Error> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

pub(super) fn short(text: &str) -> Option<ShortString> {
    ShortString::try_new(text).ok()
}
