//! Kafka Streams, as jars: no server, and nothing of ours runs on it. It is measured beside the pipeline.

use super::error::Result;
use super::jars::Jars;

const JARS: Jars = Jars { name: "streams", pom: include_str!("../../streams/pom.xml") };

/// Fetches the jars unless they are there, and returns their class path.
pub fn class_path() -> Result<String> {
    JARS.fetch()?;
    Ok(JARS.class_path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_and_the_broker_are_of_one_version() {
        let version =
            |pom: &'static str| pom.lines().find(|line| line.contains("<kafka.version>")).map(str::trim);
        let broker = version(include_str!("../../kafka/pom.xml"));
        assert!(broker.is_some());
        assert_eq!(version(JARS.pom), broker);
    }
}
