//! `cargo xtask bench saga-peers`: sagas of others on this machine, measured like semel's.
//!
//! Each peer runs a saga of three steps that do nothing, whose results it records, for as many callers as keep it busy.
//! Counted is what ended in a time, and the work of every process of the peer with its database. Its set-up is the
//! documented one; docs/benchmarks.md says what each promises.
//!
//! | module | what it decides |
//! |---|---|
//! | `measure` | what is counted, and when a count is believed |
//! | `figures` | ratios, table, JSON |
//! | `own` | what a saga of semel costs |
//! | `cpu` | the work of a tree of processes |
//! | `http` | callers over HTTP |
//! | `part` | a process of a peer, ended for certain |
//! | `install` | where packages and our programs go |
//! | `postgres` | a database for a peer |
//! | `restate`, `dbos`, `dtm` | how that peer is installed, started and asked |

mod cpu;
mod dbos;
mod dtm;
mod figures;
mod http;
mod install;
mod measure;
mod own;
mod part;
mod postgres;
mod restate;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use testkit::services::{Service, find};

use self::figures::{Figures, Semel, table};
use self::measure::Plan;
use self::postgres::Postgres;
use crate::bench::BenchArguments;
use crate::{phase, services};

/// Sagas of Restate, DBOS and dtm: three trivial steps each, sagas per second and work of processors per saga.
///
/// Installs them below target/ with npm, pip, go and cargo (Node.js, Python 3 and Go must be there), starts each by
/// itself with its database, drives it with many callers, and ends it again. The first run takes ten minutes more, for
/// the builds.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only these peers, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PEERS")]
    only: Vec<Peer>,
    /// Callers at a time. With several numbers each is tried, and the one with the most sagas per CPU second counts.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = CALLERS,
        value_parser = clap::value_parser!(u64).range(1..=1_024))]
    callers: Vec<u64>,
    /// Processor time of a saga of semel on this machine, its server included, for ratios: SQLite=0.2,PostgreSQL=0.3.
    #[arg(long, value_delimiter = ',', value_name = "NAME=MS")]
    semel: Vec<Semel>,
    #[command(flatten)]
    pub(crate) run: BenchArguments,
}

/// As many as keep each of them busy. Some batch better with more, others have more to wait for.
const CALLERS: [u64; 2] = [64, 256];

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    Restate,
    Dbos,
    Dtm,
}

impl Arguments {
    /// All peers, beside these figures of semel.
    fn all(run: BenchArguments, semel: Vec<Semel>) -> Self {
        Self { only: Vec::new(), callers: CALLERS.to_vec(), semel, run }
    }

    fn peers(&self) -> Vec<Peer> {
        let wanted = |peer: &Peer| self.only.is_empty() || self.only.contains(peer);
        Peer::value_variants().iter().copied().filter(wanted).collect()
    }

    fn plan(&self) -> Plan {
        let (warm, time) = if self.run.quick { (1, 3) } else { (5, 15) };
        let callers = self.callers.clone();
        Plan { callers, warm: Duration::from_secs(warm), time: Duration::from_secs(time) }
    }
}

/// PostgreSQL is started by this run, and ends with it.
static STARTED: AtomicBool = AtomicBool::new(false);

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let peers = arguments.peers();
    // Before anything is installed or started.
    peers.iter().try_for_each(|peer| peer.check())?;
    phase::stop_when_interrupted(|| {
        if let Err(error) = stop_postgres() {
            eprintln!("error: {error}");
        }
    })?;
    let mut rows = Vec::new();
    let measured = measure_all(&peers, &arguments.plan(), &mut rows);
    // What fails because it was interrupted is no failure of a peer; the handler ends this process.
    phase::stand_still_if_interrupted();
    let stopped = stop_postgres();
    // What was measured before something failed is shown as well.
    match arguments.run.json {
        true => rows.iter().for_each(|row| println!("{}", row.json(&arguments.semel))),
        false if rows.is_empty() => {}
        false => print!("{}", table(&rows, &arguments.semel)),
    }
    measured.and(stopped)
}

/// All peers, beside what `bench saga --json` printed.
pub(crate) fn beside(run: BenchArguments, lines: &str) -> Result<(), String> {
    match run.json {
        true => print!("{lines}"),
        false => print!("{}", own::text(lines)),
    }
    self::run(&Arguments::all(run, own::costs(lines)))
}

fn measure_all(peers: &[Peer], plan: &Plan, rows: &mut Vec<Figures>) -> Result<(), String> {
    peers.iter().try_for_each(|peer| peer.install())?;
    if peers.iter().any(|peer| *peer != Peer::Restate) {
        // Noted before: an interruption in between waits for the start, and then stops it.
        STARTED.store(find(Service::Postgres).is_none(), Ordering::SeqCst);
        Postgres::up()?;
    }
    for peer in peers {
        match peer {
            Peer::Restate => restate::measure(plan, rows)?,
            Peer::Dbos => dbos::measure(plan, &Postgres::find()?, rows)?,
            Peer::Dtm => dtm::measure(plan, &Postgres::find()?, rows)?,
        }
    }
    Ok(())
}

fn stop_postgres() -> Result<(), String> {
    match STARTED.swap(false, Ordering::SeqCst) {
        true => services::down(&[Service::Postgres]),
        false => Ok(()),
    }
}

impl Peer {
    /// The tools that installing and running it needs.
    fn check(self) -> Result<(), String> {
        let node = |peer: &str| {
            let why = format!("{peer} needs Node.js 20 or newer with npm");
            install::tool("node", "--version", &why).and_then(|_| install::tool("npm", "--version", &why))
        };
        match self {
            Self::Restate => node("Restate's service"),
            Self::Dbos => {
                node("DBOS's TypeScript library")?;
                install::tool("python3", "--version", "DBOS's Python library needs Python 3.10 or newer")
            }
            Self::Dtm => install::tool("go", "version", "dtm is built from source, with Go 1.22 or newer"),
        }
        .map(drop)
    }

    fn install(self) -> Result<(), String> {
        match self {
            Self::Restate => restate::install(),
            Self::Dbos => dbos::install(),
            Self::Dtm => dtm::install(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn all_peers_unless_some_are_named() {
        let line = |words: &[&str]| Line::try_parse_from([&["bench"], words].concat());
        let peers = |words: &[&str]| line(words).unwrap().arguments.peers();
        assert_eq!(peers(&[]), Peer::value_variants());
        let run = BenchArguments { quick: true, json: false };
        assert_eq!(Arguments::all(run, Vec::new()).peers(), Peer::value_variants());
        assert_eq!(peers(&["--only", "dtm,restate"]), [Peer::Restate, Peer::Dtm]);
        let semel = line(&["--semel", "SQLite=0.2,PostgreSQL=0.3"]).unwrap().arguments.semel;
        assert_eq!((semel.len(), semel[1].name.as_str()), (2, "PostgreSQL"));
        assert!(line(&["--only", "temporal"]).unwrap_err().to_string().contains("possible values"));
    }

    #[test]
    fn quick_is_a_fifth() {
        let time = |quick| Arguments::all(BenchArguments { quick, json: false }, Vec::new()).plan().time;
        assert_eq!(time(true) * 5, time(false));
    }
}
