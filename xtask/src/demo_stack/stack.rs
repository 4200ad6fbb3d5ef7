//! The processes: servers, service, gateway and relay, each started when the one before it serves.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::child::Child;
use testkit::services::{Service, Up};

use super::Mode;
use crate::{phase, services};

const SERVICES: [Service; 3] = [Service::Postgres, Service::Redis, Service::Kafka];
const START: Duration = Duration::from_secs(30);
const END: Duration = Duration::from_secs(15);

/// Everything that runs. [Ended](Self::end) in order, or at least killed.
#[derive(Debug)]
pub(super) struct Stack {
    /// In the order they were started in.
    processes: Vec<(&'static str, Child)>,
    started: Vec<Service>,
    postgres: String,
    kafka: String,
    schema: String,
    directory: PathBuf,
    payments: Option<SocketAddr>,
    gateway: Option<SocketAddr>,
}

/// Builds what is started.
pub(super) fn build() -> Result<(), String> {
    crate::prove::cargo_plain(&["build", "--quiet", "--package", "payments", "--package", "semel-cli"])
}

impl Stack {
    pub(super) fn start(mode: Mode) -> Result<Self, String> {
        let mut stack = Self {
            processes: Vec::new(),
            started: Vec::new(),
            postgres: String::new(),
            kafka: String::new(),
            schema: format!("demo_stack_{}", std::process::id()),
            directory: phase::logs().join(format!("demo-stack-{}", std::process::id())),
            payments: None,
            gateway: None,
        };
        match stack.fill(mode) {
            Ok(()) => Ok(stack),
            Err(error) => {
                stack.tell_logs();
                let _ = stack.end();
                Err(error)
            }
        }
    }

    fn fill(&mut self, mode: Mode) -> Result<(), String> {
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
        let at = |service| testkit::services::find(service).ok_or_else(|| format!("{service} is gone"));
        (self.postgres, self.kafka) = (at(Service::Postgres)?, at(Service::Kafka)?);
        let redis = at(Service::Redis)?;
        self.sql(&format!("CREATE SCHEMA {}", self.schema))?;
        let store = format!("{}?schema={}", self.postgres, self.schema);

        let mut payments = program("payments")?;
        let cache = format!("{redis}?prefix={}", self.schema);
        payments.args(["--store", &store, "--cache", &cache, "--serve", "127.0.0.1:0"]);
        let payments = self.run("payments", payments, "listening on ")?;
        let payments: SocketAddr = payments.parse().map_err(|_| format!("no address: {payments:?}"))?;
        self.payments = Some(payments);

        let config = self.directory.join("gateway.toml");
        let text = gateway(payments, &self.directory.join("gateway.db"));
        fs::write(&config, text).map_err(|error| format!("{}: {error}", config.display()))?;
        let mut gateway = program("semel")?;
        gateway.arg("gateway").arg("--config").arg(&config);
        let gateway = self.run("gateway", gateway, "listening on ")?;
        self.gateway = Some(gateway.parse().map_err(|_| format!("no address: {gateway:?}"))?);

        let mut relay = program("semel")?;
        relay.args([
            "relay",
            "--from",
            &store,
            "--to",
            &format!("kafka://{}", self.kafka),
            "--mode",
            mode.name(),
        ]);
        if mode == Mode::Cdc {
            relay.args(["--slot", &self.schema, "--publication", &self.schema]);
        }
        self.run("relay", relay, "relaying").map(drop)
    }

    /// Starts a program and waits for the line that begins so; gives the rest of it.
    fn run(&mut self, name: &'static str, command: Command, wanted: &str) -> Result<String, String> {
        let begin = Instant::now();
        let mut child = Child::spawn(command, None).map_err(|error| format!("{name}: {error}"))?;
        let line = loop {
            match child.next_line(START.saturating_sub(begin.elapsed())) {
                Ok(line) => match line.strip_prefix(wanted) {
                    Some(rest) => break rest.trim().to_owned(),
                    None => continue,
                },
                Err(error) => {
                    self.processes.push((name, child));
                    return Err(format!("{name} does not start: {error}"));
                }
            }
        };
        eprintln!("  {name:<13} up in {:.1} s    {line}", begin.elapsed().as_secs_f64());
        self.processes.push((name, child));
        Ok(line)
    }

    pub(super) fn gateway(&self) -> SocketAddr {
        // A stack that was given out is complete.
        self.gateway.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    pub(super) fn kafka(&self) -> &str {
        &self.kafka
    }

    /// What psql says to a query in the schema of this run: rows without heads, columns parted by `|`.
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

    /// A slot that stays would keep the server's log for ever.
    fn drop_slot(&self) -> Result<(), String> {
        let slot = format!("FROM pg_replication_slots WHERE slot_name = '{}'", self.schema);
        let until = Instant::now() + END;
        // Whoever read from it may still be about to go.
        while let Err(error) = self.sql(&format!("SELECT pg_drop_replication_slot(slot_name) {slot}")) {
            if Instant::now() > until {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.sql(&format!("DROP PUBLICATION IF EXISTS {}", self.schema)).map(drop)
    }

    /// Where everything is, for whoever wants to try more.
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

    /// What the processes said last: something is wrong.
    pub(super) fn tell_logs(&mut self) {
        for (name, child) in &mut self.processes {
            let _ = child.kill();
            let Ok(finished) = child.wait(END) else { continue };
            for line in finished.stderr.iter().rev().take(10).rev() {
                eprintln!("  {name}: {line}");
            }
        }
    }

    /// Ends everything that was started, in order: the relay first, the servers last.
    pub(super) fn end(&mut self) -> Result<(), String> {
        let mut failed = Vec::new();
        while let Some((name, mut child)) = self.processes.pop() {
            let _ = child.terminate();
            if child.wait(END).is_err() {
                failed.push(format!("{name} did not end within {} s and was killed", END.as_secs()));
            }
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

/// A program that was built with this one.
fn program(name: &str) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(Command::new(own.with_file_name(name)))
}

/// The service claims in its own transactions, so what the gateway passes on again is safe.
fn gateway(upstream: SocketAddr, store: &Path) -> String {
    format!(
        "upstream = \"http://{upstream}\"\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n\
         store = \"sqlite:{}\"\n\n[scope]\ntenant = \"header:X-Merchant-Id\"\n\n\
         [[operation]]\nname = \"payment.create\"\nmatch = \"POST /api/v1/payments\"\neffect = \"keyed\"\n\
         in_flight = \"wait:2s\"\n\n\
         [[operation]]\nname = \"payment.refund\"\nmatch = \"POST /api/v1/payments/{{id}}/refunds\"\n\
         effect = \"keyed\"\nin_flight = \"wait:2s\"\n",
        store.display()
    )
}
