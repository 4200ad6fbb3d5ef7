//! The source of a consumer: the broker in its URL.

#[cfg(feature = "kafka")]
mod kafka;

use std::time::Duration;

use semel::source::{Delivery, Receipt, Settle, Source, SourceError};

use super::args::Consume;
use crate::absent::absent;
use crate::failure::Failed;
use crate::url::Address;

const KNOWN: &str = "use kafka://HOST:PORT/TOPIC?group=NAME";

/// A source and its group, which is the consumer's default name.
pub(super) struct From {
    pub(super) source: AnySource,
    pub(super) group: String,
}

/// Where messages come from.
pub(super) enum AnySource {
    #[cfg(feature = "kafka")]
    Kafka(semel::source::kafka::KafkaSource),
    /// A build may have none.
    #[cfg(not(feature = "kafka"))]
    None(std::convert::Infallible),
}

/// The source at the URL. Does not connect yet.
pub(super) fn open(args: &Consume) -> Result<From, Failed> {
    let address =
        Address::read(&args.from).map_err(|why| Failed::usage(format!("--from: {why}; {KNOWN}")))?;
    let scheme = address.scheme.clone();
    let (broker, feature) = match scheme.as_str() {
        "kafka" => ("Kafka", "kafka"),
        _ => return Err(Failed::usage(format!("{scheme:?} is not a supported broker; {KNOWN}"))),
    };
    if args.kafka_config.is_some() && feature != "kafka" {
        return Err(Failed::usage("--kafka-config is for kafka://; leave it out, or use such a URL"));
    }
    match feature {
        #[cfg(feature = "kafka")]
        "kafka" => kafka::open(address, args),
        _ => Err(absent(format!("consuming from {broker}"), feature)),
    }
}

macro_rules! each {
    ($this:ident, $source:ident => $work:expr) => {
        match $this {
            #[cfg(feature = "kafka")]
            Self::Kafka($source) => $work,
            #[cfg(not(feature = "kafka"))]
            Self::None(never) => match *never {},
        }
    };
}

impl Source for AnySource {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        each!(self, source => source.receive(most, wait).await)
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        each!(self, source => source.settle(settled).await)
    }

    async fn keep(&mut self, in_flight: &[Receipt]) -> Result<(), SourceError> {
        each!(self, source => source.keep(in_flight).await)
    }

    fn renew_after(&self) -> Duration {
        each!(self, source => source.renew_after())
    }

    fn poll_interval(&self) -> Duration {
        each!(self, source => source.poll_interval())
    }

    fn lost(&mut self) -> Vec<Receipt> {
        each!(self, source => source.lost())
    }

    async fn retention(&mut self) -> Option<Duration> {
        each!(self, source => source.retention().await)
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        each!(self, source => source.leave().await)
    }
}
