//! Worker processes: this binary again, on the same store and the same ledger.
//!
//! Sends come as lines on stdin (`12 intent-000034`), answers go as lines to stdout (`12 replayed 1 0`), with
//! `ready` before them and `stuck` when it is time to be killed. What was not answered by then is sent again to the
//! next worker, as a queue would.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use semel::store::sqlite::SqliteStore;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::client::{Client, Ending, Stall, Told, from_tasks, guarded};
use super::directory;
use super::ledger::Ledger;
use super::plan::Send;
use crate::args::DemoWorker;
use crate::failure::Failed;
use crate::stdout;

/// How long a worker may take to finish what its dropped callers left behind.
pub(super) const DRAIN_MAX: Duration = Duration::from_secs(10);

/// The child's side.
pub(crate) async fn work(args: &DemoWorker) -> Result<(), Failed> {
    // Blocks, and may: there is nothing else to do yet.
    let lines = std::io::read_to_string(std::io::stdin().lock())?;
    let sends: Option<Vec<Send>> = lines.lines().map(parse_send).collect();
    let sends = sends.ok_or_else(|| Failed::usage("stdin: lines like `12 intent-000034` are expected"))?;
    let store = SqliteStore::open(directory::store(&args.directory)).await?;
    let ledger = Ledger::open(&directory::ledger(&args.directory))?;
    let stuck = || drop(stdout::text("stuck\n"));
    let stall = args.stall_at.map(|at| Arc::new(Stall { at, begun: AtomicU32::new(0), stuck }));
    let client = Client { guarded: guarded(store.clone())?, ledger, seed: args.seed, bug: None, stall };
    stdout::text("ready\n")?;
    let sender = client.clone();
    let what = move |send| {
        let client = sender.clone();
        async move { client.send(send).await }
    };
    let mut written = Ok(());
    from_tasks(sends, args.tasks, what, |send, told| {
        if written.is_ok() {
            written = stdout::text(&line(send, &told));
        }
    })
    .await;
    let drained = client.guarded.guard().drain(DRAIN_MAX).await;
    store.close().await;
    written?;
    if drained.is_clean() { Ok(()) } else { Err(Failed::not_done("a worker could not finish in time")) }
}

fn parse_send(line: &str) -> Option<Send> {
    let (number, intent) = line.split_once(' ')?;
    Some(Send { number: number.parse().ok()?, intent: intent.parse().ok()? })
}

fn line(send: Send, told: &Told) -> String {
    let (word, why) = match &told.ending {
        Ending::Ran => ("ran", ""),
        Ending::Replayed => ("replayed", ""),
        Ending::Held => ("held", ""),
        Ending::Wrong(why) => ("wrong", why.as_str()),
    };
    format!("{} {word} {} {} {}\n", send.number, told.in_flight, told.dropped, why.replace('\n', " "))
}

fn parse_line(line: &str) -> Option<(u32, Told)> {
    let mut words = line.splitn(5, ' ');
    let number = words.next()?.parse().ok()?;
    let word = words.next()?;
    let (in_flight, dropped) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let ending = match word {
        "ran" => Ending::Ran,
        "replayed" => Ending::Replayed,
        "held" => Ending::Held,
        _ => Ending::Wrong(words.next()?.to_owned()),
    };
    Some((number, Told { ending, in_flight, dropped }))
}

/// How the workers are started.
pub(super) struct Workers<'a> {
    pub(super) directory: &'a Path,
    pub(super) seed: u64,
    pub(super) tasks: u32,
}

/// A worker process, and what it still has to answer.
pub(super) struct Worker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Workers<'_> {
    /// Starts the worker that will be killed, and returns when it is about to send.
    pub(super) async fn start_first(&self, sends: &[Send]) -> Result<Worker, Failed> {
        // Late enough that it has done something, early enough that it has more to do.
        let stall_at = (sends.len() as u32 / 20).max(2);
        self.start(sends, Some(stall_at)).await
    }

    /// Lets the first worker work until it is killed in the middle, and has another carry on. Says how many were
    /// killed.
    pub(super) async fn run(
        &self,
        first: Worker,
        sends: Vec<Send>,
        mut tell: impl FnMut(Send, Told),
    ) -> Result<u32, Failed> {
        let mut open: HashMap<u32, Send> = sends.iter().map(|send| (send.number, *send)).collect();
        let killed = first.answers(&mut open, &mut tell).await?;
        let rest: Vec<Send> = sends.into_iter().filter(|send| open.contains_key(&send.number)).collect();
        self.start(&rest, None).await?.answers(&mut open, &mut tell).await?;
        match open.values().next() {
            None => Ok(u32::from(killed)),
            Some(send) => {
                Err(Failed::not_done(format!("a worker ended without an answer for {}", send.intent)))
            }
        }
    }

    async fn start(&self, sends: &[Send], stall_at: Option<u32>) -> Result<Worker, Failed> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("demo-worker").arg("--directory").arg(self.directory);
        command.arg("--seed").arg(self.seed.to_string()).arg("--tasks").arg(self.tasks.to_string());
        if let Some(at) = stall_at {
            command.arg("--stall-at").arg(at.to_string());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failed::not_done("a worker has no pipes"));
        };
        let text: String = sends.iter().map(|send| format!("{} {}\n", send.number, send.intent)).collect();
        stdin.write_all(text.as_bytes()).await?;
        drop(stdin);
        let mut lines = BufReader::new(stdout).lines();
        match lines.next_line().await?.as_deref() {
            Some("ready") => Ok(Worker { child, lines }),
            other => Err(Failed::not_done(format!("a worker did not start, it said {other:?}"))),
        }
    }
}

impl Worker {
    /// Hears its answers until it ends; whether it was killed.
    async fn answers(
        mut self,
        open: &mut HashMap<u32, Send>,
        tell: &mut impl FnMut(Send, Told),
    ) -> Result<bool, Failed> {
        let mut killed = false;
        while let Some(line) = self.lines.next_line().await? {
            if line == "stuck" {
                // SIGKILL, to this child only: no handler, no drain, no goodbye. What it answered before is
                // still in the pipe.
                self.child.start_kill()?;
                killed = true;
                continue;
            }
            let (number, told) =
                parse_line(&line).ok_or_else(|| Failed::not_done(format!("a worker said {line:?}")))?;
            if let Some(send) = open.remove(&number) {
                tell(send, told);
            }
        }
        let status = self.child.wait().await?;
        match killed || status.success() {
            true => Ok(killed),
            false => Err(Failed::not_done(format!("a worker failed: {status}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::plan::IntentNo;

    #[test]
    fn answers_survive_the_pipe() {
        for ending in [Ending::Ran, Ending::Replayed, Ending::Held, Ending::Wrong("no room\nleft".into())] {
            let told = Told { ending, in_flight: 3, dropped: 1 };
            let (number, read) =
                parse_line(line(Send { number: 7, intent: IntentNo(1) }, &told).trim_end()).unwrap();
            assert_eq!((number, read.in_flight, read.dropped), (7, 3, 1));
            match read.ending {
                Ending::Wrong(why) => assert_eq!(why, "no room left"),
                ending => assert_eq!(ending, told.ending),
            }
        }
        assert_eq!(parse_send("12 intent-000034"), Some(Send { number: 12, intent: IntentNo(34) }));
        assert_eq!(parse_send("intent-000034"), None);
    }
}
