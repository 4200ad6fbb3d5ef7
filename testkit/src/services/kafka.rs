//! Apache Kafka: the real broker, broker and controller in one process (KRaft).
//!
//! librdkafka's mock cluster delivers aborted messages and does no fencing. Exactly-once has to be shown against this
//! one, and judged by Kafka's own consumer.

use std::process::Command;
use std::time::{Duration, Instant};

use super::error::{Error, Result};
use super::jars::{JAVA, Jars};
use super::probe;
use super::recipe::{Need, Place, Recipe, Task, command, run};

const JARS: Jars = Jars { name: "kafka", pom: include_str!("../../kafka/pom.xml") };
const LOGGING: &str = include_str!("../../kafka/log4j2.properties");
const BROKER: &str = include_str!("../../kafka/broker.properties");

/// Any 16 bytes in base64url; a cluster of one has no other to differ from.
const CLUSTER_ID: &str = "c2VtZWwtdGVzdGtpdC0wMQ";

/// How long the console consumer waits for one more message.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct Kafka;

impl Recipe for Kafka {
    fn needs(&self) -> &'static [Need] {
        JAVA
    }

    fn ports(&self) -> usize {
        2
    }

    fn fetch(&self) -> Result<()> {
        JARS.fetch().map(drop)
    }

    fn prepare(&self, at: &Place) -> Result<()> {
        write_config(at)?;
        let mut format = java("128m", &at.dir)?;
        format.args(["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", CLUSTER_ID, "-c"]);
        run({
            format.arg(at.dir.join("broker.properties"));
            format
        })
        .map(drop)
    }

    fn tasks(&self, at: &Place) -> Result<Vec<Task>> {
        write_config(at)?;
        let mut broker = java("384m", &at.dir)?;
        broker.arg("kafka.Kafka").arg(at.dir.join("broker.properties")).current_dir(&at.data);
        Ok(vec![Task { role: "broker".to_owned(), command: broker, port: at.port(0) }])
    }

    fn is_ready(&self, at: &Place) -> bool {
        serves(at.port(0))
    }

    fn url(&self, at: &Place) -> String {
        format!("127.0.0.1:{}", at.port(0))
    }
}

fn write_config(at: &Place) -> Result<()> {
    let text = BROKER
        .replace("@BROKER_PORT@", &at.port(0).to_string())
        .replace("@CONTROLLER_PORT@", &at.port(1).to_string())
        .replace("@DATA@", &at.data.join("log").display().to_string());
    std::fs::write(at.dir.join("broker.properties"), text)?;
    std::fs::write(at.dir.join("log4j2.properties"), LOGGING)?;
    Ok(())
}

fn java(heap: &str, dir: &std::path::Path) -> Result<Command> {
    let mut java = command("java")?;
    java.arg(format!("-Xmx{heap}")).args(["-Xms64m", "-XX:+UseSerialGC"]);
    java.arg(format!("-Dlog4j2.configurationFile={}", dir.join("log4j2.properties").display()));
    java.arg("-cp").arg(JARS.class_path());
    Ok(java)
}

/// A Metadata request, version 1, for no topics. A broker that has not finished its start is
/// still fenced and not in its own list, although it listens.
fn serves(port: u16) -> bool {
    let mut request: Vec<u8> = vec![0, 3, 0, 1, 0, 0, 0, 1, 0, 5];
    request.extend_from_slice(b"semel");
    request.extend_from_slice(&[0, 0, 0, 0]);
    let mut framed = u32::try_from(request.len()).unwrap_or(0).to_be_bytes().to_vec();
    framed.extend_from_slice(&request);
    // Length, correlation id, number of brokers: four bytes each.
    probe::ask(port, &framed, |answer| answer.len() >= 12)
        .is_some_and(|answer| answer[8..12] > [0, 0, 0, 0][..])
}

/// How long the console consumer is run again where it gave up too soon.
const ASKED_FOR: Duration = Duration::from_secs(180);

/// Runs the console consumer until it has shown what `is_enough` wants, or for three minutes. It gives up when
/// nothing has come for a few seconds, which on a busy machine may be before its first fetch, many times over.
///
/// # Errors
/// Where the tool cannot be run.
pub fn asked_until<T>(
    mut ask: impl FnMut() -> Result<Vec<T>>,
    is_enough: impl Fn(&[T]) -> bool,
) -> Result<Vec<T>> {
    let until = Instant::now() + ASKED_FOR;
    loop {
        let shown = ask()?;
        if is_enough(&shown) || Instant::now() >= until {
            return Ok(shown);
        }
    }
}

/// Reads a topic from the beginning with Kafka's own console consumer, in another process and
/// without a line of librdkafka: the independent judge of what was committed.
///
/// Stops after `max` messages, or when nothing more has come for a few seconds.
pub fn console_consumer(
    bootstrap: &str,
    topic: &str,
    read_committed: bool,
    max: usize,
) -> Result<Vec<String>> {
    consume(bootstrap, &["--topic", topic], read_committed, (max, PATIENCE), &[])
}

/// The same of several topics at once, whose names are letters, digits and `_`. Waits this long for each message.
pub fn console_consumer_of(
    bootstrap: &str,
    topics: &[&str],
    read_committed: bool,
    max: usize,
    patience: Duration,
) -> Result<Vec<String>> {
    consume(bootstrap, &["--include", &topics.join("|")], read_committed, (max, patience), &[])
}

/// A record as the console consumer shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Its partition.
    pub partition: i32,
    /// Its offset there.
    pub offset: i64,
    /// Names and texts, in order.
    pub headers: Vec<(String, String)>,
    /// The key as text.
    pub key: String,
    /// The value as text.
    pub value: String,
}

impl Shown {
    /// The text of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str())
    }

    /// Reads a line. Keys, values and headers have no tab, and header texts no comma.
    fn read(line: &str) -> Option<Self> {
        let mut parts = line.splitn(5, '\t');
        let mut part = || parts.next();
        let partition = part()?.strip_prefix("Partition:")?.parse().ok()?;
        let offset = part()?.strip_prefix("Offset:")?.parse().ok()?;
        let headers = part()?.split(',').filter_map(|header| header.split_once(':'));
        let headers = headers.map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
        Some(Self { partition, offset, headers, key: part()?.to_owned(), value: part()?.to_owned() })
    }
}

/// The same with keys, headers, partitions and offsets, of what was committed.
pub fn console_consumer_shown(bootstrap: &str, topic: &str, max: usize) -> Result<Vec<Shown>> {
    let show = ["print.partition", "print.offset", "print.headers", "print.key", "print.value"];
    let lines = consume(bootstrap, &["--topic", topic], true, (max, PATIENCE), &show)?;
    let read = |line: &String| {
        Shown::read(line).ok_or_else(|| Error::new(format!("the console consumer printed {line:?}")))
    };
    lines.iter().map(read).collect()
}

fn consume(
    bootstrap: &str,
    topics: &[&str],
    read_committed: bool,
    (max, patience): (usize, Duration),
    show: &[&str],
) -> Result<Vec<String>> {
    let mut consumer = tool("consumer.ConsoleConsumer")?;
    consumer.arg("--from-beginning");
    consumer.args(["--bootstrap-server", bootstrap]).args(topics);
    consumer.arg("--timeout-ms").arg(patience.as_millis().to_string());
    consumer.arg("--max-messages").arg(max.to_string());
    for property in show {
        consumer.arg("--formatter-property").arg(format!("{property}=true"));
    }
    let isolation = if read_committed { "read_committed" } else { "read_uncommitted" };
    consumer.args(["--isolation-level", isolation]);
    let output = run(consumer).map_err(|error| Error::of(error, "Kafka's console consumer"))?;
    Ok(output.lines().map(str::to_owned).collect())
}

/// One of Kafka's own tools.
fn tool(class: &str) -> Result<Command> {
    JARS.fetch()?;
    // The broker may not be ours, so the logging's configuration may not be there yet.
    let dir = super::instance::root().join("kafka");
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join("log4j2.properties"), LOGGING)?;
    let mut tool = java("128m", &dir)?;
    tool.arg(format!("org.apache.kafka.tools.{class}"));
    Ok(tool)
}

/// Aborts the open transactions in a partition, with Kafka's own tool, and returns how many there were. For
/// transactions that a killed broker left open and no longer knows. One that ends by itself meanwhile is not counted.
pub fn abort_open_transactions(bootstrap: &str, topic: &str, partition: i32) -> Result<usize> {
    let ask = |command: &str, more: &[&str]| {
        let mut tool = tool("TransactionsCommand")?;
        tool.args(["--bootstrap-server", bootstrap, command, "--topic", topic, "--partition"]);
        tool.arg(partition.to_string()).args(more);
        run(tool).map_err(|error| Error::of(error, "Kafka's tool for transactions"))
    };
    let producers = ask("describe-producers", &[])?;
    let mut aborted = 0;
    for start in producers.lines().filter_map(start_of_open) {
        match ask("abort", &["--start-offset", start]) {
            Ok(_) => aborted += 1,
            Err(error) if error.to_string().contains("Could not find any open transactions") => {}
            Err(error) => return Err(error),
        }
    }
    Ok(aborted)
}

/// Where the open transaction of a producer began: the last column, a number if there is one.
fn start_of_open(line: &str) -> Option<&str> {
    line.split_whitespace().last().filter(|start| start.parse::<u64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_an_open_transaction_is_read() {
        let head = "ProducerId\tProducerEpoch\tLatestCoordinatorEpoch\tLastSequence\tLastTimestamp\tCurrentTransactionStartOffset";
        assert_eq!(start_of_open(head), None);
        assert_eq!(start_of_open("2000\t4\t0\t1\t1763312345678\tNone"), None);
        assert_eq!(start_of_open("2000\t4\t0\t1\t1763312345678\t17"), Some("17"));
    }

    #[test]
    fn a_line_of_the_console_consumer_is_read() {
        let shown =
            Shown::read("Partition:2\tOffset:17\tsemel-id:a,content-type:text/x\tk\tone\ttwo").unwrap();
        assert_eq!((shown.partition, shown.offset, shown.key.as_str()), (2, 17, "k"));
        assert_eq!((shown.header("semel-id"), shown.header("none")), (Some("a"), None));
        assert_eq!(shown.value, "one\ttwo");
        assert_eq!(Shown::read("Processed a total of 3 messages"), None);
    }
}
