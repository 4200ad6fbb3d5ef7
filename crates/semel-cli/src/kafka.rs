//! librdkafka properties, from a URL or a file.

use crate::failure::Failed;
use crate::keys::KeySource;
use crate::url::Address;

/// Secrets do not belong on a command line.
const SECRET: [&str; 5] = [
    "sasl.password",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
    "sasl.oauthbearer.client.secret",
];

/// Takes the properties out of a URL's query: their names contain a dot.
pub(crate) fn in_url(url: &mut Address) -> Result<Vec<(String, String)>, Failed> {
    let given = url.take_where(|name| name.contains('.'));
    match given.iter().find(|(property, _)| SECRET.contains(&property.as_str())) {
        Some((property, _)) => Err(Failed::usage(format!(
            "{property} in a URL could be read by others; put it into a file and give --kafka-config file:PATH"
        ))),
        None => Ok(given),
    }
}

/// The properties in a file or an environment variable. Their values never appear in a message.
pub(crate) fn in_file(source: Option<&KeySource>) -> Result<Vec<(String, String)>, Failed> {
    let Some(source) = source else { return Ok(Vec::new()) };
    let (text, warning) = source.text("properties").map_err(Failed::usage)?;
    if let Some(warning) = warning {
        eprintln!("semel: {warning}");
    }
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(at, line)| match line.split_once('=') {
            Some((property, value)) => Ok((property.trim().to_owned(), value.trim().to_owned())),
            None => Err(Failed::usage(format!("line {} of {source} must be NAME=VALUE", at + 1))),
        })
        .collect()
}
