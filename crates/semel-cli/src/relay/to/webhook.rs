//! `http://HOST/PATH`. Its query belongs to the receiver.

use std::time::Duration;

use semel::sink::webhook::WebhookSink;

use super::{AnySink, To, wrong};
use crate::failure::Failed;
use crate::relay::args::SinkFlags;

pub(super) fn open(url: &str, flags: &SinkFlags) -> Result<To, Failed> {
    let Some(source) = &flags.webhook_secret else {
        return Err(Failed::usage(
            "webhooks are signed and need a secret (whsec_…); give it with --webhook-secret file:PATH or env:NAME",
        ));
    };
    let (secret, warning) = source.text("secret").map_err(Failed::usage)?;
    if let Some(warning) = warning {
        eprintln!("semel: {warning}");
    }
    let secret = secret.trim();
    let mut options = WebhookSink::options().any_topic(url, secret).map_err(wrong)?;
    for (topic, url) in &flags.webhook_endpoint {
        options = options.endpoint(topic, url, secret).map_err(wrong)?;
    }
    if flags.webhook_allow_private == Some(true) {
        options = options.allow_private();
    }
    if let Some(requests) = flags.webhook_concurrency {
        options = options.concurrency(usize::from(requests));
    }
    if let Some(ms) = flags.webhook_timeout {
        options = options.attempt_timeout(Duration::from_millis(ms));
    }
    if let Some(source) = &flags.cloudevents {
        options = options.cloud_events(source);
    }
    Ok(To::AtLeastOnce(Box::new(AnySink::Webhook(options.open()))))
}
