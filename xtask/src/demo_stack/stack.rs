//! The processes: servers, service, gateway, relay and consumer, each started when the one before it serves.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use testkit::child::Child;
use testkit::services::{Service, Up};

use super::Mode;
use super::chaos::servers::Servers;
use super::parts::Part;
use crate::{phase, services};

/// The servers of the stack.
pub(super) const SERVICES: [Service; 3] = [Service::Postgres, Service::Redis, Service::Kafka];
const START: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(30);

/// Everything that runs. [Ended](Self::end) in order, or at least killed.
#[derive(Debug)]
pub(super) struct Stack {
    /// In the order they were started in.
    processes: Vec<(Part, Child)>,
    started: Vec<Service>,
    postgres: String,
    redis: String,
    kafka: String,
    /// The clients' merchant: events of other runs in the same topics have another.
    merchant: String,
    pub(super) schema: String,
    pub(super) directory: PathBuf,
    pub(super) mode: Mode,
    /// A planted bug of the consumer.
    pub(super) planted: Option<String>,
    pub(super) payments: Option<SocketAddr>,
    pub(super) gateway: Option<SocketAddr>,
    /// The servers that may be killed, where that is wanted.
    pub(super) servers: Option<Servers>,
}

/// Builds what is started, with crash points.
pub(super) fn build() -> Result<(), String> {
    let features = "payments/kafka,payments/crash-points,semel-cli/full,semel-cli/crash-points";
    let packages = ["--package", "payments", "--package", "semel-cli", "--bins"];
    crate::cargo::run(&[&["build", "--quiet", "--features", features], &packages[..]].concat(), &[])
}

impl Stack {
    pub(super) fn start(mode: Mode, planted: Option<String>, kills: bool) -> Result<Self, String> {
        let pid = std::process::id();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut stack = Self {
            processes: Vec::new(),
            started: Vec::new(),
            postgres: String::new(),
            redis: String::new(),
            kafka: String::new(),
            merchant: format!("demo-{pid}-{since}"),
            schema: format!("demo_stack_{pid}"),
            directory: phase::logs().join(format!("demo-stack-{pid}")),
            mode,
            planted,
            payments: None,
            gateway: None,
            servers: None,
        };
        match stack.fill(kills) {
            Ok(()) => Ok(stack),
            Err(error) => {
                stack.tell_logs();
                let _ = stack.end();
                Err(error)
            }
        }
    }

    fn fill(&mut self, kills: bool) -> Result<(), String> {
        fs::create_dir_all(&self.directory)
            .map_err(|error| format!("{}: {error}", self.directory.display()))?;
        let mut missing = Vec::new();
        for (service, up) in services::up(&SERVICES) {
            match up {
                Ok(Up::Started) => self.started.push(service),
                Ok(_) => {}
                Err(_) => missing.push(service.name()),
            }
        }
        if !missing.is_empty() {
            return Err(format!("not up: {}", missing.join(", ")));
        }
        let servers = if kills { Some(Servers::take()?) } else { None };
        let at = |service| {
            let alone = servers.as_ref().and_then(|servers| servers.address(service));
            alone.or_else(|| testkit::services::find(service)).ok_or_else(|| format!("{service} is gone"))
        };
        (self.postgres, self.kafka) = (at(Service::Postgres)?, at(Service::Kafka)?);
        self.redis = at(Service::Redis)?;
        self.servers = servers;
        self.sql(&format!("CREATE SCHEMA {}", self.schema))?;
        for part in Part::ALL {
            let begin = Instant::now();
            let line = self.run(part, None)?;
            eprintln!("  {:<13} up in {:.1} s    {line}", part.name(), begin.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Starts a part and waits until it serves; returns the rest of the line in which it says so. It stops at the
    /// crash point `crash_at`, if given.
    pub(super) fn run(&mut self, part: Part, crash_at: Option<&str>) -> Result<String, String> {
        let (begin, name) = (Instant::now(), part.name());
        let command = part.command(self)?;
        let mut child = Child::spawn(command, crash_at).map_err(|error| format!("{name}: {error}"))?;
        let line = loop {
            match child.next_line(START.saturating_sub(begin.elapsed())) {
                Ok(line) => match line.strip_prefix(part.up()) {
                    Some(rest) => break rest.trim().to_owned(),
                    None => continue,
                },
                Err(error) => {
                    self.processes.push((part, child));
                    return Err(format!("{name} does not start: {error}"));
                }
            }
        };
        self.processes.push((part, child));
        let address = || line.parse().map_err(|_| format!("no address of {name}: {line:?}"));
        match part {
            Part::Payments => self.payments = Some(address()?),
            Part::Gateway => self.gateway = Some(address()?),
            Part::Relay | Part::Consumer => {}
        }
        Ok(line)
    }

    /// SIGKILL. A part that has ended by itself is an error, with its last output.
    pub(super) fn kill(&mut self, part: Part) -> Result<(), String> {
        self.check(part)?;
        let mut child = self.take(part)?;
        child.kill().map(drop).map_err(|error| format!("{}: {error}", part.name()))
    }

    /// SIGKILL at the crash point that it was started with.
    pub(super) fn kill_at_point(&mut self, part: Part, patience: Duration) -> Result<(), String> {
        let mut child = self.take(part)?;
        let there = child.wait_for_point(patience);
        child.kill().map_err(|error| format!("{}: {error}", part.name()))?;
        there.map(drop).map_err(|error| format!("{}: {error}", part.name()))
    }

    /// SIGTERM, and waits until it has ended.
    pub(super) fn stop(&mut self, part: Part) -> Result<(), String> {
        let mut child = self.take(part)?;
        let _ = child.terminate();
        match child.wait(END) {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("{} did not end within {} s and was killed", part.name(), END.as_secs())),
        }
    }

    /// Whether a part still runs.
    pub(super) fn check(&mut self, part: Part) -> Result<(), String> {
        let Some((_, child)) = self.processes.iter_mut().find(|(of, _)| *of == part) else { return Ok(()) };
        match child.wait(Duration::ZERO) {
            Err(_) => Ok(()),
            Ok(ended) => {
                let last: Vec<_> = ended.stderr.iter().rev().take(3).rev().cloned().collect();
                Err(format!("{} ended by itself ({}): {}", part.name(), ended.status, last.join(" / ")))
            }
        }
    }

    fn take(&mut self, part: Part) -> Result<Child, String> {
        let at = self.processes.iter().position(|(of, _)| *of == part);
        at.map(|at| self.processes.remove(at).1).ok_or_else(|| format!("{} does not run", part.name()))
    }

    pub(super) fn store(&self) -> String {
        format!("{}?schema={}", self.postgres, self.schema)
    }

    pub(super) fn cache(&self) -> String {
        format!("{}?prefix={}", self.redis, self.schema)
    }

    pub(super) fn merchant(&self) -> &str {
        &self.merchant
    }

    pub(super) fn address(&self) -> SocketAddr {
        // A stack that was given out is complete.
        self.gateway.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    pub(super) fn kafka(&self) -> &str {
        &self.kafka
    }

    /// psql's answer to a query in the schema of this run: rows without headers, columns separated by `|`.
    pub(super) fn sql(&self, query: &str) -> Result<String, String> {
        let mut psql = Command::new("psql");
        psql.env("PGOPTIONS", format!("-c search_path={}", self.schema));
        psql.args([&self.postgres, "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", query]);
        let output = psql.output().map_err(|error| format!("psql: {error}"))?;
        if !output.status.success() {
            return Err(format!("psql: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// A slot that stays would retain the server's log forever.
    fn drop_slot(&self) -> Result<(), String> {
        let slot = format!("FROM pg_replication_slots WHERE slot_name = '{}'", self.schema);
        let until = Instant::now() + END;
        // Its reader may still be about to end.
        while let Err(error) = self.sql(&format!("SELECT pg_drop_replication_slot(slot_name) {slot}")) {
            if Instant::now() > until {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.sql(&format!("DROP PUBLICATION IF EXISTS {}", self.schema)).map(drop)
    }

    /// Prints all addresses, for people who want to try more.
    pub(super) fn tell(&self) {
        let address = |at: Option<SocketAddr>| at.map_or_else(String::new, |at| format!("http://{at}"));
        println!("gateway    {}", address(self.gateway));
        println!("payments   {}", address(self.payments));
        println!("PostgreSQL {}   schema {}", self.postgres, self.schema);
        println!("Kafka      {}   topics payments, audit", self.kafka);
        println!(
            "curl -i {}/api/v1/payments -H 'X-Merchant-Id: acme' -H 'Idempotency-Key: order-1' \
             -H 'Content-Type: application/json' -d '{{\"amount\": 4200, \"customer\": \"ana\"}}'",
            address(self.gateway)
        );
        println!("Ctrl-C ends everything that was started");
    }

    /// Prints the last output of the processes: something is wrong.
    pub(super) fn tell_logs(&mut self) {
        for (part, child) in &mut self.processes {
            let name = part.name();
            let _ = child.kill();
            let Ok(finished) = child.wait(END) else { continue };
            for line in finished.stderr.iter().rev().take(10).rev() {
                eprintln!("  {name}: {line}");
            }
        }
    }

    /// Ends everything that was started, in order: the consumer first, the servers last.
    pub(super) fn end(&mut self) -> Result<(), String> {
        let mut failed = Vec::new();
        self.processes.sort_by_key(|(part, _)| *part);
        while let Some((part, _)) = self.processes.last() {
            let part = *part;
            failed.extend(self.stop(part).err());
        }
        if !self.postgres.is_empty() {
            failed.extend(self.drop_slot().err());
            failed.extend(self.sql(&format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema)).err());
        }
        let _ = fs::remove_dir_all(&self.directory);
        let started = std::mem::take(&mut self.started);
        if !started.is_empty() {
            failed.extend(services::down(&started).err());
        }
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }
}
