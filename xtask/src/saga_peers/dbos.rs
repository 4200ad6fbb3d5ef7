//! DBOS: a library over PostgreSQL. The program that calls the sagas runs them. Measured in two languages.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::figures::Figures;
use super::install;
use super::measure::{Plan, Setup, measure as measure_setup};
use super::part::{Part, START};
use super::postgres::{Database, Postgres};

const DATABASE: &str = "peer_dbos";
const SDK: &str = "@dbos-inc/dbos-sdk";

pub(super) fn install() -> Result<(), String> {
    let place = install::npm("dbos")?;
    install::copy(&install::sources("dbos"), &["saga.mjs", "saga.py", "requirements.txt"], &place)?;
    python(&place).map(drop)
}

/// The interpreter of an environment with DBOS in it, made on first use.
fn python(place: &Path) -> Result<std::path::PathBuf, String> {
    let wanted = install::text(&place.join("requirements.txt"))?;
    testkit::python::with(&wanted.lines().collect::<Vec<_>>())
}

enum Language {
    TypeScript,
    Python,
}

impl Language {
    fn command(&self, place: &Path) -> Result<Command, String> {
        let mut command = match self {
            Self::TypeScript => Command::new("node"),
            Self::Python => Command::new(python(place)?),
        };
        command.arg(if matches!(self, Self::TypeScript) { "saga.mjs" } else { "saga.py" });
        Ok(command)
    }

    /// Its name in the table, and which version that is.
    fn names(&self, place: &Path) -> Result<[String; 2], String> {
        match self {
            Self::TypeScript => {
                let node = install::tool("node", "--version", "DBOS's TypeScript library needs it")?;
                let version = install::npm_version(place, SDK)?;
                let version = format!("{version} (Node.js {})", node.trim_start_matches('v'));
                Ok(["DBOS, TypeScript".to_owned(), version])
            }
            Self::Python => {
                let wanted = install::text(&place.join("requirements.txt"))?;
                let version = wanted.trim().split("==").nth(1).unwrap_or_default().to_owned();
                let python = python(place)?.display().to_string();
                let python = install::tool(&python, "--version", "DBOS's Python library needs it")?;
                Ok(["DBOS, Python".to_owned(), format!("{version} ({python})")])
            }
        }
    }
}

pub(super) fn measure(plan: &Plan, postgres: &Postgres, rows: &mut Vec<Figures>) -> Result<(), String> {
    let place = install::place("dbos")?;
    for language in [Language::TypeScript, Language::Python] {
        let database = postgres.database(DATABASE)?;
        let [name, version] = language.names(&place)?;
        let mut command = language.command(&place)?;
        command.arg(database.url()).current_dir(&place);
        let mut program = Part::start("DBOS's program", command)?;
        program.wait_for("ready", START)?;
        let names = [name, version, postgres.version.clone()];
        let mut dbos = Dbos { names, program, postgres: postgres.pid(), _database: database };
        rows.push(measure_setup(&mut dbos, plan)?);
    }
    Ok(())
}

struct Dbos {
    names: [String; 3],
    program: Part,
    postgres: u32,
    /// Dropped last: the program still uses it.
    _database: Database,
}

impl Setup for Dbos {
    fn names(&self) -> [String; 3] {
        self.names.clone()
    }

    fn processes(&self) -> Vec<u32> {
        vec![self.program.pid(), self.postgres]
    }

    fn load(&mut self, callers: u64, time: Duration) -> Result<u64, String> {
        self.program.ask(&format!("run {} {callers}", time.as_secs()), "ended", time)
    }

    fn steps(&mut self) -> Result<u64, String> {
        self.program.ask("steps", "steps", Duration::ZERO)
    }
}
