//! dtm: a coordinator over PostgreSQL, which calls the steps over HTTP. Built from source: it has no package.
//!
//! Its server listens on all interfaces and has no setting for that, so that two lines of the copy that is built are
//! changed: it listens on loopback.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::figures::Figures;
use super::http::{self, Connection};
use super::install;
use super::measure::{Plan, STEPS, Setup, measure as measure_setup};
use super::part::{Part, START, addresses};
use super::postgres::{Database, Postgres};
use serde_json::{Value, json};

const MODULE: &str = "github.com/dtm-labs/dtm";
const VERSION: &str = "v1.19.0";
const DATABASE: &str = "peer_dtm";
/// PostgreSQL takes 200 here, and dtm would open 500.
const CONNECTIONS: u32 = 128;
const PAUSE: Duration = Duration::from_millis(100);

/// Where its server listens, and what is made of that.
const LISTENS: (&str, &str, &str) = ("dtmsvr/svr.go", "Sprintf(\":%d\", ", "Sprintf(\"127.0.0.1:%d\", ");

pub(super) fn install() -> Result<(), String> {
    let place = install::place("dtm")?;
    let files = ["go.mod", "service.go"];
    install::copy(&install::sources("dtm"), &files, &place)?;
    let go = |folder: &Path, program: &str| {
        let mut go = Command::new("go");
        go.args(["build", "-buildvcs=false", "-o"]).arg(place.join(program)).arg(".").current_dir(folder);
        install::run(&format!("dtm-go-{program}"), go).map(drop)
    };
    go(&place, "service")?;
    install::once(&place, "dtm", VERSION, || {
        let source = place.join("source");
        download(&source)?;
        go(&source, "dtm")
    })
}

/// A copy of the module's source that listens on loopback.
fn download(to: &Path) -> Result<(), String> {
    let mut go = Command::new("go");
    go.args(["mod", "download", "-json", &format!("{MODULE}@{VERSION}")]);
    let said = install::run("dtm-go-download", go)?;
    // Progress may stand before the object.
    let said = said.find('{').map_or("", |at| &said[at..]);
    let module: Value = serde_json::from_str(said).map_err(|error| format!("go mod download: {error}"))?;
    let from = module["Dir"].as_str().ok_or("go mod download does not say where the module is")?;
    if to.exists() {
        fs::remove_dir_all(to).map_err(|error| format!("{}: {error}", to.display()))?;
    }
    copy(Path::new(from), to).map_err(|error| format!("{from} to {}: {error}", to.display()))?;
    let file = to.join(LISTENS.0);
    let text = on_loopback(&install::text(&file)?)?;
    fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
}

fn on_loopback(source: &str) -> Result<String, String> {
    let (file, before, after) = LISTENS;
    match source.matches(before).count() {
        2 => Ok(source.replace(before, after)),
        other => Err(format!("{file} listens in {other} places and not in 2: is {VERSION} another one?")),
    }
}

/// With permissions of new files: those of the module cache are read-only.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &to)?,
            false => fs::write(to, fs::read(entry.path())?)?,
        }
    }
    Ok(())
}

/// Whether the result of a step is written before the next one runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Results {
    /// The default: later, in batches. A crash repeats those steps.
    Later,
    /// `UpdateBranchSync: 1`.
    Before,
}

pub(super) fn measure(plan: &Plan, postgres: &Postgres, rows: &mut Vec<Figures>) -> Result<(), String> {
    let place = install::place("dtm")?;
    for results in [Results::Later, Results::Before] {
        let mut dtm = Dtm::start(&place, postgres, results)?;
        rows.push(measure_setup(&mut dtm, plan)?);
    }
    Ok(())
}

struct Dtm {
    names: [String; 3],
    at: SocketAddr,
    service: SocketAddr,
    /// So that no two loads use an id twice.
    loads: u64,
    server: Part,
    steps: Part,
    postgres: u32,
    /// Dropped last: the server still uses it.
    _database: Database,
}

impl Dtm {
    fn start(place: &Path, postgres: &Postgres, results: Results) -> Result<Self, String> {
        let database = postgres.database(DATABASE)?;
        database.run(&place.join("source/sqls/dtmsvr.storage.postgres.sql"))?;
        let [at, grpc, service] = addresses();
        let mut command = Command::new(place.join("service"));
        command.arg(service.to_string());
        let mut steps = Part::start("dtm's service", command)?;
        steps.wait_for("ready", START)?;
        let settings = settings(place, &database, [at, grpc], results)?;
        let mut command = Command::new(place.join("dtm"));
        command.arg("-c").arg(settings).current_dir(place);
        let server = Part::start("dtm", command)?;
        let name = match results {
            Results::Later => "dtm",
            Results::Before => "dtm, UpdateBranchSync: 1",
        };
        let names = [name.to_owned(), VERSION.trim_start_matches('v').to_owned(), postgres.version.clone()];
        let postgres = postgres.pid();
        let mut dtm = Self { names, at, service, loads: 0, server, steps, postgres, _database: database };
        dtm.wait_until_it_serves()?;
        Ok(dtm)
    }

    fn wait_until_it_serves(&mut self) -> Result<(), String> {
        let until = Instant::now() + START;
        loop {
            let asked = Connection::open(self.at).and_then(|mut to| to.ask("GET", "/api/dtmsvr/newGid", ""));
            let why = match asked {
                Ok((200, _)) => return Ok(()),
                Ok((status, answer)) => format!("answers with {status}: {answer}"),
                Err(error) => error,
            };
            if Instant::now() > until {
                return Err(self.server.failed(&format!("does not serve: {why}")));
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Its settings: the defaults but for addresses and connections, and without a log line for each request.
fn settings(
    place: &Path,
    database: &Database,
    [http, grpc]: [SocketAddr; 2],
    results: Results,
) -> Result<PathBuf, String> {
    let (user, host, port) = database.address()?;
    let text = format!(
        "Store:\n  Driver: postgres\n  Host: {host}\n  Port: {port}\n  User: {user}\n  Password: none\n  Db: {}\n  \
         MaxOpenConns: {CONNECTIONS}\n  MaxIdleConns: {CONNECTIONS}\n\
         HttpPort: {}\nGrpcPort: {}\nLogLevel: warn\nUpdateBranchSync: {}\n",
        database.name,
        http.port(),
        grpc.port(),
        u8::from(results == Results::Before)
    );
    let file = place.join("dtm.yml");
    fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file)
}

impl Setup for Dtm {
    fn names(&self) -> [String; 3] {
        self.names.clone()
    }

    fn processes(&self) -> Vec<u32> {
        vec![self.server.pid(), self.steps.pid(), self.postgres]
    }

    fn load(&mut self, callers: u64, time: Duration) -> Result<u64, String> {
        self.loads += 1;
        let (loads, service) = (self.loads, self.service);
        let until = Instant::now() + time;
        http::load(
            self.at,
            callers,
            |_| Instant::now() < until,
            |to, number| {
                let body = submit(&format!("saga-{loads}-{number}"), service);
                match to.ask("POST", "/api/dtmsvr/submit", &body)? {
                    (200, answer) if succeeded(&answer) => Ok(()),
                    (status, answer) => Err(format!("a saga ended with {status}: {answer}")),
                }
            },
        )
    }

    fn steps(&mut self) -> Result<u64, String> {
        self.steps.ask("steps", "steps", Duration::ZERO)
    }
}

/// A saga, to be answered when it has ended.
fn submit(gid: &str, service: SocketAddr) -> String {
    let at = |path: &str| format!("http://{service}/{path}");
    let steps: Vec<Value> =
        (0..STEPS).map(|_| json!({"action": at("step"), "compensate": at("undo")})).collect();
    let payloads = vec!["{}"; steps.len()];
    json!({"gid": gid, "trans_type": "saga", "wait_result": true, "steps": steps, "payloads": payloads})
        .to_string()
}

fn succeeded(answer: &str) -> bool {
    let parsed: Result<Value, _> = serde_json::from_str(answer);
    parsed.is_ok_and(|answer| answer["dtm_result"] == "SUCCESS")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_to_listen_on_loopback_or_not_built() {
        let source = "app.Run(fmt.Sprintf(\":%d\", a))\nnet.Listen(\"tcp\", fmt.Sprintf(\":%d\", b))\n";
        let changed = on_loopback(source).unwrap();
        assert_eq!(changed.matches("127.0.0.1:%d").count(), 2);
        assert!(on_loopback(&changed).unwrap_err().contains("in 0 places"));
    }

    #[test]
    fn a_saga_has_three_steps_and_an_undo_for_each() {
        let saga: Value = serde_json::from_str(&submit("a", SocketAddr::from(([127, 0, 0, 1], 80)))).unwrap();
        let steps = saga["steps"].as_array().unwrap();
        assert_eq!((steps.len(), saga["payloads"].as_array().unwrap().len()), (3, 3));
        assert_eq!(steps[0]["compensate"], "http://127.0.0.1:80/undo");
        assert!(saga["wait_result"].as_bool().unwrap());
    }

    #[test]
    fn only_success_is_success() {
        assert!(succeeded(r#"{"dtm_result":"SUCCESS","gid":"a"}"#));
        for other in [r#"{"dtm_result":"ONGOING"}"#, r#"{"dtm_result":"FAILURE"}"#, "", "SUCCESS"] {
            assert!(!succeeded(other), "{other}");
        }
    }
}
