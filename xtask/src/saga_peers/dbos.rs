//! DBOS: a library over PostgreSQL. The program that calls the sagas runs them. Measured in three languages.

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
    python(&place)?;
    install::cargo("dbos", "saga.rs")
}

/// The interpreter of an environment with DBOS in it, made on first use.
fn python(place: &Path) -> Result<std::path::PathBuf, String> {
    let wanted = install::text(&place.join("requirements.txt"))?;
    testkit::python::with(&wanted.lines().collect::<Vec<_>>())
}

enum Language {
    TypeScript,
    Python,
    Rust,
}

impl Language {
    fn command(&self, place: &Path) -> Result<Command, String> {
        let script = |mut interpreter: Command, file| {
            interpreter.arg(file);
            interpreter
        };
        Ok(match self {
            Self::TypeScript => script(Command::new("node"), "saga.mjs"),
            Self::Python => script(Command::new(python(place)?), "saga.py"),
            Self::Rust => Command::new(install::cargo_program(place, "dbos-saga")),
        })
    }

    /// Its name in the table, and which version that is.
    fn names(&self, place: &Path) -> Result<[String; 2], String> {
        let (name, version) = match self {
            Self::TypeScript => {
                ("DBOS, TypeScript", format!("{} ({})", install::npm_version(place, SDK)?, install::node()?))
            }
            Self::Python => {
                let wanted = install::text(&place.join("requirements.txt"))?;
                let version = wanted.trim().split("==").nth(1).unwrap_or_default();
                let python = python(place)?.display().to_string();
                let python = install::tool(&python, "--version", "DBOS's Python library needs it")?;
                ("DBOS, Python", format!("{version} ({python})"))
            }
            Self::Rust => ("DBOS, Rust", install::cargo_version(place, "dbos")?),
        };
        Ok([name.to_owned(), version])
    }
}

pub(super) fn measure(plan: &Plan, postgres: &Postgres, rows: &mut Vec<Figures>) -> Result<(), String> {
    let place = install::place("dbos")?;
    for language in [Language::TypeScript, Language::Python, Language::Rust] {
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
