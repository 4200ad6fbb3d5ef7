//! From Kafka to Kafka in a process of its own: how fast, with how much work of processors, in how much memory.
//!
//! Ours and others' are measured alike. A process says `begun` with its first message; done it is when its group has
//! committed all of the input, which in a transaction is when the outputs are committed too. Starting is not in it. When its input
//! ends it says how many transactions that took.

use std::process::Command;
use std::time::{Duration, Instant};

use testkit::child::Child;

use super::judge::judge;
use super::pipeline::{Full, SMALL, USUAL, WORD};
use super::scene::{PAYLOAD_BYTES, Scene};
use super::streams::Streams;
use crate::Failed;
use crate::table::Table;
use crate::usage::{cpu_seconds, high_water};

const ROUNDS: usize = 3;
const START_MAX: Duration = Duration::from_secs(120);
const RUN_MAX: Duration = Duration::from_secs(600);
const END_MAX: Duration = Duration::from_secs(30);
const ASK_EVERY: Duration = Duration::from_millis(10);

/// Somebody who takes the messages of one topic to another.
enum Runner<'a> {
    Pipeline(Full),
    Streams(&'a Streams, usize),
}

impl Runner<'_> {
    fn command(&self, scene: &Scene, group: &str, output: &str) -> Result<Command, Failed> {
        let full = match self {
            Self::Streams(streams, which) => return streams.command(*which, scene, group, output),
            Self::Pipeline(full) => full,
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.args([WORD, &scene.brokers, group, &scene.input(), output]);
        command.args([full.messages.to_string(), full.linger.as_millis().to_string()]);
        Ok(command)
    }

    fn name(&self) -> String {
        match self {
            Self::Pipeline(full) => format!("semel, batches of {}", full.messages),
            Self::Streams(streams, which) => format!("Kafka Streams, {}", streams.name(*which)),
        }
    }

    fn note(&self) -> String {
        match self {
            Self::Pipeline(full) => format!("or after {:?}", full.linger),
            Self::Streams(streams, which) => streams.note(*which),
        }
    }
}

/// What is best of all rounds: what disturbs a process makes it slower and larger, never the other way round.
#[derive(Clone, Copy)]
struct Best {
    /// Messages in a second.
    rate: f64,
    /// The same of the second half, when everybody is warm.
    warm: f64,
    /// Messages for each second that a processor worked.
    per_core: f64,
    peak_bytes: f64,
    in_a_transaction: u64,
}

impl Best {
    fn or(self, other: Self) -> Self {
        Self {
            rate: self.rate.max(other.rate),
            warm: self.warm.max(other.warm),
            per_core: self.per_core.max(other.per_core),
            peak_bytes: self.peak_bytes.min(other.peak_bytes),
            in_a_transaction: self.in_a_transaction,
        }
    }
}

/// The pipeline alone, or beside Kafka Streams, by turns.
pub(super) async fn measure(
    scene: &Scene,
    streams: Option<&Streams>,
    table: &mut Table,
) -> Result<(), Failed> {
    let mut runners = vec![Runner::Pipeline(USUAL)];
    if let Some(streams) = streams {
        runners.push(Runner::Pipeline(SMALL));
        runners.extend((0..streams.ways()).map(|which| Runner::Streams(streams, which)));
    }
    let mut best: Vec<Option<Best>> = vec![None; runners.len()];
    for round in 0..ROUNDS {
        for (at, (runner, best)) in runners.iter().zip(&mut best).enumerate() {
            let which = format!("apart-{round}-{at}");
            let output = scene.topic(&which).await?;
            let run = run(scene, runner, &format!("{}-{which}", scene.name), &output);
            scene.remove(&output).await?;
            let run = run.map_err(|error| format!("{}: {error}", runner.name()))?;
            *best = Some(best.map_or(run, |best| best.or(run)));
        }
    }
    let best: Vec<Best> = best.into_iter().flatten().collect();
    for (runner, best) in runners.iter().zip(&best) {
        let name = runner.name();
        let note = format!(
            "{} messages of {PAYLOAD_BYTES} bytes; {}; {} in a transaction; second half {:.0}",
            scene.messages,
            runner.note(),
            best.in_a_transaction,
            best.warm
        );
        table.row(&name, best.rate, "msg/s", note);
        table.row(&format!("{name}: per core"), best.per_core, "msg/cpu-s", "all threads of the process");
        table.row(&format!("{name}: peak memory"), best.peak_bytes / 1_048_576.0, "MiB", "of the process");
    }
    let ours = |runner: &Runner<'_>| matches!(runner, Runner::Pipeline(_));
    let theirs: Vec<Best> =
        runners.iter().zip(&best).filter(|(runner, _)| !ours(runner)).map(|(_, best)| *best).collect();
    // Beside the best of each that Kafka Streams shows in any way.
    if let Some(theirs) = theirs.into_iter().reduce(Best::or) {
        for (runner, best) in runners.iter().zip(&best).filter(|(runner, _)| ours(runner)) {
            let name = runner.name();
            let note = format!("ahead above 1; second half {:.2}", best.warm / theirs.warm);
            table.row(&format!("{name} / Kafka Streams"), best.rate / theirs.rate, "ratio", note);
            let per_core = best.per_core / theirs.per_core;
            table.row(&format!("{name} / Kafka Streams: per core"), per_core, "ratio", "ahead above 1");
            let memory = best.peak_bytes / theirs.peak_bytes;
            table.row(&format!("{name} / Kafka Streams: memory"), memory, "ratio", "aim 0.2");
        }
    }
    Ok(())
}

fn run(scene: &Scene, runner: &Runner<'_>, group: &str, output: &str) -> Result<Best, Failed> {
    let asks = scene.asks_about(group)?;
    let mut child = Child::spawn(runner.command(scene, group, output)?, None)?;
    if let Err(error) = child.next_line(START_MAX) {
        return Err(format!("it did not begin: {error}; {:?}", child.wait(END_MAX)).into());
    }
    let (begun, worked) = (Instant::now(), cpu_seconds(child.id())?);
    let mut half = None;
    loop {
        let committed = scene.committed(&asks)?;
        if half.is_none() && committed * 2 >= scene.messages {
            half = Some((Instant::now(), committed));
        }
        if committed >= scene.messages {
            break;
        }
        // It has nothing to say, so this ends at once only where its output has ended.
        if let Err(error) = child.next_line(ASK_EVERY)
            && error.kind() != std::io::ErrorKind::TimedOut
        {
            return Err(format!("it ended after {committed} messages: {:?}", child.wait(END_MAX)).into());
        }
        if begun.elapsed() > RUN_MAX {
            return Err(format!("{committed} of {} messages after {RUN_MAX:?}", scene.messages).into());
        }
    }
    let took = begun.elapsed().as_secs_f64();
    let worked = cpu_seconds(child.id())? - worked;
    let peak = high_water(child.id())?;
    let rate = scene.messages as f64 / took;
    let warm = match half {
        Some((since, committed)) if committed < scene.messages => {
            (scene.messages - committed) as f64 / since.elapsed().as_secs_f64()
        }
        // So few that they were committed at once.
        _ => rate,
    };
    let ended = child.wait(END_MAX)?;
    if !ended.status.success() {
        return Err(format!("it did not end well: {ended:?}").into());
    }
    let transactions = ended.stdout.iter().find_map(|line| line.strip_prefix("transactions ")?.parse().ok());
    let transactions: u64 = transactions.ok_or("it did not say how many transactions it took")?;
    judge(scene, output)?;
    Ok(Best {
        rate,
        warm,
        per_core: scene.messages as f64 / worked.max(0.01),
        peak_bytes: peak as f64,
        in_a_transaction: scene.messages / transactions.max(1),
    })
}
