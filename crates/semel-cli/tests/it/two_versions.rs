//! Two versions side by side: gateways and relays of an older binary and of this one on one database, under duplicates
//! and kills, while it is migrated. What the service wrote down is the judge.
//!
//! `SEMEL_OLD_BINARY` names the older binary; `cargo xtask prove --old REF` builds one. Without it this binary plays
//! both parts, which shows less, and says so.

mod database;
mod service;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use testkit::child::Child;
use testkit::ledger::Entries;
use testkit::services::Service;

use self::database::Database;
use self::service::{Payments, post};
use crate::receiver::{Receiver, SOON};
use crate::relay_world::SECRET;

/// Payments of a run, each sent to both gateways.
const PAYMENTS: usize = 240;
const WORKERS: usize = 6;
const KEYS: usize = 20;
/// How many times a process is killed, evenly over the run.
const KILLS: usize = 12;
/// Nothing here takes this long.
const LONG: Duration = Duration::from_secs(120);

#[test]
#[ignore = "prove: kills at random, two versions"]
fn old_and_new_side_by_side_on_sqlite() {
    once(&side_by_side(&Database::sqlite(), "opaque"));
}

/// The service does not look at keys, so calling its operation `keyed` is wrong: the ledger shows it.
#[test]
#[ignore = "prove: kills at random, two versions"]
fn a_payment_that_is_made_twice_is_caught() {
    let ledger = side_by_side(&Database::sqlite(), "keyed");
    assert_ne!(ledger.duplicates(), BTreeMap::new());
}

#[test]
#[ignore = "prove: kills at random, two versions"]
fn old_and_new_side_by_side_on_postgres() {
    let Some(database) = Database::postgres() else { return };
    once(&side_by_side(&database, "opaque"));
}

#[test]
#[ignore = "prove: kills at random, two versions"]
fn old_and_new_side_by_side_on_mysql() {
    let Some(database) = Database::mysql(Service::Mysql) else { return };
    once(&side_by_side(&database, "opaque"));
}

/// The older binary, and this one.
fn binaries() -> [PathBuf; 2] {
    let new = PathBuf::from(env!("CARGO_BIN_EXE_semel"));
    let old = std::env::var_os("SEMEL_OLD_BINARY").map(PathBuf::from).unwrap_or_else(|| {
        println!("NO OLDER BINARY: the same one plays both parts. Give one: cargo xtask prove --old REF");
        new.clone()
    });
    for binary in [&old, &new] {
        let version = Command::new(binary).arg("--version").output();
        let version = version.unwrap_or_else(|error| panic!("{}: {error}", binary.display()));
        println!("{}: {}", binary.display(), String::from_utf8_lossy(&version.stdout).trim());
    }
    [old, new]
}

/// A long-running command. Started again by the same binary when it was killed.
struct Process {
    binary: PathBuf,
    args: Vec<String>,
    running: Mutex<Running>,
}

struct Running {
    child: Child,
    /// The last address it names before it is up: a gateway's own, or a relay's admin listener.
    address: SocketAddr,
}

impl Process {
    fn start(binary: &Path, args: &[String]) -> Self {
        let running = Mutex::new(run(binary, args));
        Self { binary: binary.to_owned(), args: args.to_vec(), running }
    }

    fn address(&self) -> SocketAddr {
        self.running.lock().unwrap().address
    }

    fn kill_and_start_again(&self) {
        let mut running = self.running.lock().unwrap();
        running.child.kill().unwrap();
        *running = run(&self.binary, &self.args);
    }

    fn stop(self) {
        let mut running = self.running.into_inner().unwrap();
        running.child.terminate().unwrap();
        let ended = running.child.wait(SOON).unwrap();
        assert!(ended.status.success(), "{:?}: {ended:?}", self.args);
    }
}

fn command(binary: &Path, args: &[String]) -> Command {
    let mut command = Command::new(binary);
    command.args(args).env("SEMEL_TEST_HOOK", SECRET);
    for name in ["SEMEL_STORE", "SEMEL_CACHE", "SEMEL_FROM", "SEMEL_TO", "SEMEL_KEYS"] {
        command.env_remove(name);
    }
    command
}

fn run(binary: &Path, args: &[String]) -> Running {
    let mut child = Child::spawn(command(binary, args), None).unwrap();
    let first = child.next_line(SOON).unwrap_or_else(|error| panic!("{args:?}: {error}"));
    let admin = child.next_line(SOON).unwrap_or_else(|error| panic!("{args:?}: {error}"));
    let address = first.strip_prefix("listening on ").or_else(|| admin.strip_prefix("admin on "));
    Running { child, address: address.unwrap_or_else(|| panic!("{first}\n{admin}")).parse().unwrap() }
}

/// `semel migrate` by that binary, by two at once.
fn migrate(binary: &Path, database: &Database) {
    for (flag, url) in [("--store", database.store()), ("--outbox", database.outbox())] {
        let args = ["migrate", flag, &url].map(str::to_owned);
        let both = [(); 2].map(|()| command(binary, &args).stdout(Stdio::null()).spawn().unwrap());
        for mut one in both {
            assert!(one.wait().unwrap().success(), "{args:?}");
        }
    }
}

/// How many payments are done. The kills wait for it.
#[derive(Default)]
struct Progress(Mutex<usize>, Condvar);

impl Progress {
    fn one_more(&self) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_all();
    }

    fn wait_for(&self, count: usize) {
        let done = self.0.lock().unwrap();
        let (_done, waited) = self.1.wait_timeout_while(done, LONG, |done| *done < count).unwrap();
        assert!(!waited.timed_out(), "no progress towards {count} payments");
    }
}

/// What the service wrote down.
fn side_by_side(database: &Database, effect: &str) -> Entries {
    let [old, new] = binaries();
    let folder = testkit::scratch::directory();
    let (service, hook) = (Payments::start(&folder.path().join("ledger")), Receiver::start());
    migrate(&old, database);

    let config = folder.path().join("gateway.toml");
    std::fs::write(
        &config,
        format!(
            "[scope]\nsingle_tenant = true\n[[operation]]\nname = \"pay\"\nmatch = \"POST /pay\"\nlease = \"1s\"\n\
             effect = \"{effect}\"\nlookup = \"GET /pay/{{key}}\"\nlookup_settle = \"1s\"\nlookup_absent = 404\n\
             lookup_status = 201\n"
        ),
    )
    .unwrap();
    let (config, store, outbox) = (config.display().to_string(), database.store(), database.outbox());
    let (upstream, events) = (service.url(), hook.url());
    let gateway = ["gateway", "--config", &config, "--upstream", &upstream, "--store", &store];
    let gateway = [&gateway[..], &["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]].concat();
    let relay = ["relay", "--from", &outbox, "--to", &events, "--admin", "127.0.0.1:0", "--lease", "2s"];
    let relay =
        [&relay[..], &["--webhook-secret", "env:SEMEL_TEST_HOOK", "--webhook-allow-private"]].concat();
    let both = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        [Process::start(&old, &args), Process::start(&new, &args)]
    };
    let (gateways, relays) = (both(&gateway), both(&relay));

    let (progress, next) = (Progress::default(), AtomicUsize::new(0));
    let mut random = testkit::seed::rng();
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= PAYMENTS {
                        break;
                    }
                    pay(&gateways, &format!("payment-{n}"));
                    database.append(n % KEYS, n);
                    progress.one_more();
                }
            });
        }
        for kill in 1..=KILLS {
            progress.wait_for(PAYMENTS * kill / (KILLS + 2));
            if kill == KILLS / 3 {
                migrate(&new, database);
            }
            let processes: Vec<&Process> = gateways.iter().chain(&relays).collect();
            processes[random.usize(..processes.len())].kill_and_start_again();
        }
    });

    // Every event arrived, those of a key in their order. Some arrive twice: a relay was killed after it had sent them.
    let until = Instant::now() + LONG;
    let mut came = HashSet::new();
    let mut arrived = 0;
    while came.len() < PAYMENTS {
        assert!(Instant::now() < until, "{} of {PAYMENTS} events arrived", came.len());
        let bodies = hook.bodies(arrived + 1);
        arrived = bodies.len();
        came.extend(bodies);
    }
    let mut last: HashMap<usize, usize> = HashMap::new();
    let mut seen = HashSet::new();
    for n in hook.bodies(arrived).iter().map(|body| body.parse::<usize>().unwrap()) {
        if seen.insert(n) {
            let before = last.insert(n % KEYS, n);
            assert!(before.is_none_or(|before| database.came_before(before, n)), "{n} came after {before:?}");
        }
    }
    gateways.into_iter().chain(relays).for_each(Process::stop);

    // Each kill prints its own figure.
    println!("figures: {PAYMENTS} payments, {} events, {arrived} deliveries", came.len());
    Entries::read(service.ledger()).unwrap()
}

/// Each payment was made once.
fn once(ledger: &Entries) {
    assert_eq!(ledger.duplicates(), BTreeMap::new(), "payments made more than once");
    assert_eq!((ledger.distinct(), ledger.torn()), (PAYMENTS, None), "payments made");
}

/// One payment, sent to both gateways at once, and to each until it answers that it is done.
fn pay(gateways: &[Process; 2], key: &str) {
    std::thread::scope(|scope| {
        for gateway in gateways {
            scope.spawn(move || {
                let until = Instant::now() + LONG;
                loop {
                    let answer = post(gateway.address(), "/pay", key);
                    match answer {
                        Ok(200..=299) => break,
                        // In progress, in doubt until the lookup, or killed.
                        _ => std::thread::sleep(Duration::from_millis(20)),
                    }
                    assert!(Instant::now() < until, "{key}: {answer:?}");
                }
            });
        }
    });
}
