//! Worker processes: this binary again, on the same store and the same ledger.
//!
//! Sends come as lines on stdin (`12 intent-000034`), answers go as lines to stdout (`12 replayed 1 0`). What was
//! not answered when a worker died is sent again to the next one, as a queue would.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use semel::store::sqlite::SqliteStore;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

use super::client::{Client, Ending, Told, from_tasks, guarded};
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
    let client = Client { guarded: guarded(store.clone())?, ledger, seed: args.seed, bug: None };
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

impl Workers<'_> {
    /// Has one worker do a fifth of the sends, kills it in the middle of the next ones, and has another carry on. Says how many
    /// were killed.
    pub(super) async fn run(
        &self,
        sends: Vec<Send>,
        mut tell: impl FnMut(Send, Told),
    ) -> Result<u32, Failed> {
        let mut open: HashMap<u32, Send> = sends.iter().map(|send| (send.number, *send)).collect();
        let kill_at = sends.len() / 5;
        let killed = self.one(&sends, &mut open, Some(kill_at), &mut tell).await?;
        let rest: Vec<Send> = sends.into_iter().filter(|send| open.contains_key(&send.number)).collect();
        self.one(&rest, &mut open, None, &mut tell).await?;
        if let Some(send) = open.values().next() {
            return Err(Failed::not_done(format!("a worker ended without an answer for {}", send.intent)));
        }
        Ok(u32::from(killed))
    }

    /// One worker's life; whether it was killed.
    async fn one(
        &self,
        sends: &[Send],
        open: &mut HashMap<u32, Send>,
        kill_at: Option<usize>,
        tell: &mut impl FnMut(Send, Told),
    ) -> Result<bool, Failed> {
        let mut child = self.start()?;
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failed::not_done("a worker has no pipes"));
        };
        let text: String = sends.iter().map(|send| format!("{} {}\n", send.number, send.intent)).collect();
        stdin.write_all(text.as_bytes()).await?;
        drop(stdin);
        let mut lines = BufReader::new(stdout).lines();
        let mut answered = 0;
        let mut killed = false;
        while let Some(line) = lines.next_line().await? {
            let (number, told) =
                parse_line(&line).ok_or_else(|| Failed::not_done(format!("a worker said {line:?}")))?;
            let Some(send) = open.remove(&number) else { continue };
            tell(send, told);
            answered += 1;
            if kill_at.is_some_and(|at| answered >= at) && !killed {
                // SIGKILL, to this child only: no handler, no drain, no goodbye. What it had answered before is
                // still in the pipe.
                child.start_kill()?;
                killed = true;
            }
        }
        let status = child.wait().await?;
        if !status.success() && !killed {
            return Err(Failed::not_done(format!("a worker failed: {status}")));
        }
        Ok(killed && !status.success())
    }

    fn start(&self) -> Result<Child, Failed> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("demo-worker").arg("--directory").arg(self.directory);
        command.arg("--seed").arg(self.seed.to_string()).arg("--tasks").arg(self.tasks.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        Ok(command.spawn()?)
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
