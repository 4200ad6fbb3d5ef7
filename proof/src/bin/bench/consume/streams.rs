//! Kafka Streams with `exactly_once_v2`, on the same broker and the same input.
//!
//! It needs a JDK (its harness is a source file) and jars of Maven Central. Where they cannot be had it is left out, and
//! that is said.

use std::process::Command;

use testkit::services::streams::class_path;

use super::scene::Scene;
use crate::Failed;
use crate::java::Harness;

const HARNESS: &str = include_str!("Streams.java");

/// One way to set it up.
struct Way {
    name: &'static str,
    machine: &'static [&'static str],
    settings: &'static [(&'static str, &'static str)],
}

/// Both commit every 100 ms, which is what it does when it is exactly once, in one thread, which is what it has.
const WAYS: [Way; 2] = [
    Way { name: "as it comes", machine: &["-Xmx512m"], settings: &[] },
    // As far as the Java client has the settings of the pipeline's, and in as little memory as it goes.
    Way {
        name: "lean",
        machine: &["-Xmx64m", "-XX:+UseSerialGC"],
        settings: &[
            ("consumer.max.poll.records", "2000"),
            ("producer.linger.ms", "1"),
            ("producer.batch.size", "1000000"),
            ("producer.buffer.memory", "16777216"),
        ],
    },
];

pub(super) struct Streams(Harness);

impl Streams {
    /// Where it cannot be had that is said, and it is left out.
    pub(super) fn find() -> Result<Option<Self>, Failed> {
        Ok(Harness::make("Streams", HARNESS, class_path)?.map(Self))
    }

    /// In how many ways it is set up.
    pub(super) fn ways(&self) -> usize {
        WAYS.len()
    }

    pub(super) fn name(&self, which: usize) -> &'static str {
        WAYS[which].name
    }

    pub(super) fn note(&self, which: usize) -> String {
        let Way { machine, settings, .. } = &WAYS[which];
        let settings = settings.iter().map(|(name, value)| format!(" {name}={value}")).collect::<String>();
        format!("commit.interval.ms=100{settings}, one thread, {}", machine.join(" "))
    }

    pub(super) fn command(
        &self,
        which: usize,
        scene: &Scene,
        group: &str,
        output: &str,
    ) -> Result<Command, Failed> {
        let state = self.0.directory().join("state").display().to_string();
        let mut settings = vec![
            ("application.id", group),
            ("bootstrap.servers", &scene.brokers),
            ("processing.guarantee", "exactly_once_v2"),
            ("commit.interval.ms", "100"),
            ("num.stream.threads", "1"),
            ("replication.factor", "1"),
            ("state.dir", &state),
        ];
        settings.extend(WAYS[which].settings);
        let settings = self.0.write("streams.properties", &settings)?;
        let mut options = WAYS[which].machine.to_vec();
        // It warns of each retry, and that is many in a second.
        options.push("-Dorg.slf4j.simpleLogger.defaultLogLevel=error");
        let mut java = self.0.command(&options);
        java.arg(settings).args([&scene.input(), output]);
        Ok(java)
    }
}
