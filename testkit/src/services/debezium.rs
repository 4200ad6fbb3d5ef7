//! Debezium's engine, as jars: no server, and nothing of ours runs on it. It is measured beside the relay.

use super::error::Result;
use super::jars::Jars;

const JARS: Jars = Jars { name: "debezium", pom: include_str!("../../debezium/pom.xml") };

/// Fetches the jars unless they are there, and returns their class path.
pub fn class_path() -> Result<String> {
    JARS.fetch()?;
    Ok(JARS.class_path())
}
