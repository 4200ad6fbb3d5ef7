//! Restate: a server of its own, which calls a service with the SDK. Measured with two SDKs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::figures::Figures;
use super::http::{self, Connection};
use super::install::{self, Data};
use super::measure;
use super::measure::{Plan, Setup, measure as measure_setup};
use super::part::{Part, START, addresses};

const SERVER: &str = "@restatedev/restate-server";
const SDK: &str = "@restatedev/restate-sdk";
const PAUSE: Duration = Duration::from_millis(100);

/// What the three steps add up to.
const SUM: u64 = measure::STEPS * (measure::STEPS + 1) / 2;

pub(super) fn install() -> Result<(), String> {
    let place = install::npm("restate")?;
    install::copy(&install::sources("restate"), &["service.mjs"], &place)?;
    install::cargo("restate", "service.rs")
}

/// The service of one SDK.
enum Service {
    TypeScript,
    Rust,
}

impl Service {
    fn command(&self, place: &Path, at: SocketAddr) -> Command {
        let mut command = match self {
            Self::TypeScript => {
                let mut node = Command::new("node");
                // Otherwise it writes two lines for each saga.
                node.arg("service.mjs").env("RESTATE_LOGGING", "WARN").env("NODE_ENV", "production");
                node
            }
            Self::Rust => Command::new(install::cargo_program(place, "restate-saga")),
        };
        command.arg(at.to_string()).current_dir(place);
        command
    }

    /// Its name in the table, and which SDK that is.
    fn names(&self, place: &Path) -> Result<(&'static str, String), String> {
        match self {
            Self::TypeScript => {
                let sdk = install::npm_version(place, SDK)?;
                Ok(("Restate, TypeScript", format!("SDK {sdk}, {}", install::node()?)))
            }
            Self::Rust => {
                Ok(("Restate, Rust", format!("SDK {}", install::cargo_version(place, "restate-sdk")?)))
            }
        }
    }
}

pub(super) fn measure(plan: &Plan, rows: &mut Vec<Figures>) -> Result<(), String> {
    let place = install::place("restate")?;
    for service in [Service::TypeScript, Service::Rust] {
        let mut restate = Restate::start(&place, &service)?;
        rows.push(measure_setup(&mut restate, plan)?);
    }
    Ok(())
}

struct Restate {
    names: [String; 3],
    ingress: SocketAddr,
    server: Part,
    service: Part,
    /// Dropped last: the server still uses it.
    _data: Data,
}

impl Restate {
    fn start(place: &Path, service: &Service) -> Result<Self, String> {
        let (name, sdk) = service.names(place)?;
        let version = format!("{} ({sdk})", install::npm_version(place, SERVER)?);
        let [at, ingress, admin, fabric] = addresses();
        let mut part = Part::start("Restate's service", service.command(place, at))?;
        part.wait_for("ready", START)?;
        let mut command = Command::new(program(place)?);
        command.args(["--no-logo", "--bind-ip", "127.0.0.1", "--listen-mode", "tcp"]);
        let data = Data::new(place)?;
        command.arg("--base-dir").arg(&data.0).current_dir(place);
        command.env("RESTATE_BIND_PORT", fabric.port().to_string());
        command.env("RESTATE_ADMIN__BIND_PORT", admin.port().to_string());
        command.env("RESTATE_INGRESS__BIND_PORT", ingress.port().to_string());
        command.env("RESTATE_DISABLE_TELEMETRY", "true");
        let server = Part::start("restate-server", command)?;
        let names = [name.to_owned(), version, "its own (RocksDB)".to_owned()];
        let mut restate = Self { names, ingress, server, service: part, _data: data };
        restate.register(admin, at)?;
        Ok(restate)
    }

    /// Asks until the server knows the service. It answers before it is complete.
    fn register(&mut self, admin: SocketAddr, service: SocketAddr) -> Result<(), String> {
        let body = format!("{{\"uri\": \"http://{service}\"}}");
        let until = Instant::now() + START;
        loop {
            let asked = Connection::open(admin).and_then(|mut to| to.ask("POST", "/deployments", &body));
            let why = match asked {
                Ok((200..=299, _)) => return Ok(()),
                Ok((status, answer)) => format!("answers with {status}: {answer}"),
                Err(error) => error,
            };
            if Instant::now() > until {
                return Err(self.server.failed(&format!("does not take the service: {why}")));
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Setup for Restate {
    fn names(&self) -> [String; 3] {
        self.names.clone()
    }

    fn processes(&self) -> Vec<u32> {
        vec![self.server.pid(), self.service.pid()]
    }

    fn load(&mut self, callers: u64, time: Duration) -> Result<u64, String> {
        let until = Instant::now() + time;
        let saga = |to: &mut Connection, _| match to.ask("POST", "/saga/run", "")? {
            (200, sum) if sum == SUM.to_string() => Ok(()),
            (status, answer) => Err(format!("a saga ended with {status}: {answer}")),
        };
        http::load(self.ingress, callers, |_| Instant::now() < until, saga)
    }

    fn steps(&mut self) -> Result<u64, String> {
        self.service.ask("steps", "steps", Duration::ZERO)
    }
}

/// The server's binary, in a package for this kind of machine. The script of the package itself would stay in between.
fn program(place: &Path) -> Result<PathBuf, String> {
    let machine = match std::env::consts::ARCH {
        "x86_64" => "linux-x64",
        "aarch64" => "linux-arm64",
        other => return Err(format!("Restate has no package for {other}; choose other peers with --only")),
    };
    let program = place.join("node_modules").join(format!("{SERVER}-{machine}")).join("bin/restate-server");
    program.exists().then_some(()).ok_or_else(|| format!("{} is not there", program.display()))?;
    Ok(program)
}
