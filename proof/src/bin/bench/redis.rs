//! The Redis store against Redis' own load tool running the same scripts; memory per record; the tiered store.
//!
//! On a server of this run's own, without persistence: what is compared is the work of the server and of the client,
//! not the disk.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::observe::Metrics;
use semel::store::redis::RedisStore;
use semel::store::sqlite::SqliteStore;
use semel::store::tiered::TieredStore;
use semel::store::{Claim, Claimed, Finish, Store};
use semel::{Effect, Intent, Key, Operation, Outcome, Owner, Retention, Scope, Verdict};
use tokio::runtime::Runtime;

use crate::load;
use crate::table::Table;
use crate::{Directory, Failed};

const CALLERS: usize = 64;
const CONNECTIONS: usize = 2;
/// Records in memory, unless `--records` says otherwise.
const RECORDS: usize = 100_000;
/// Finished intents that are replayed again and again.
const REPLAYED: usize = 1_000;

/// The store's scripts, which begin with the same text.
const BEGIN: &str = include_str!("../../../../crates/semel/src/store/redis/lua/begin.lua");
const CLAIM: &str = include_str!("../../../../crates/semel/src/store/redis/lua/claim.lua");
const FINISH: &str = include_str!("../../../../crates/semel/src/store/redis/lua/finish.lua");

/// A server that ends with the run.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(directory: &Directory) -> Result<Self, Failed> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new("redis-server");
        command.args([
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--port",
            &port.to_string(),
        ]);
        let child = command.current_dir(&directory.0).stdout(Stdio::null()).spawn()?;
        let until = Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > until {
                return Err("redis-server does not come up".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { child, port })
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}?connections={CONNECTIONS}", self.port)
    }

    fn cli(&self, words: &[&str]) -> Result<String, Failed> {
        let mut command = Command::new("redis-cli");
        let output = command.args(["-p", &self.port.to_string()]).args(words).output()?;
        Ok(String::from_utf8(output.stdout)?)
    }

    fn used_bytes(&self) -> Result<f64, Failed> {
        let info = self.cli(&["INFO", "memory"])?;
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).ok_or("no used_memory")?;
        Ok(line.trim().parse()?)
    }

    /// Requests per second of `redis-benchmark`, with as many under way as our callers have.
    fn load_tool(&self, requests: usize, keys: usize, words: &[&str]) -> Result<f64, Failed> {
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &self.port.to_string(), "-q", "--csv", "-c", &CONNECTIONS.to_string()]);
        command.args(["-P", &(CALLERS / CONNECTIONS).to_string(), "-n", &requests.to_string()]);
        command.args(["-r", &keys.to_string()]).args(words);
        let output = String::from_utf8(command.output()?.stdout)?;
        // "test","rps",… and then a line of numbers in quotes; the name may hold anything.
        let last = output.lines().rfind(|line| !line.is_empty()).ok_or("redis-benchmark says nothing")?;
        let fields: Vec<f64> =
            last.rsplit(',').filter_map(|field| field.trim_matches('"').parse().ok()).collect();
        fields.get(6).copied().ok_or_else(|| format!("redis-benchmark says {output:?}").into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn measure(
    runtime: &Runtime,
    size: usize,
    records: Option<u64>,
    directory: &Directory,
    table: &mut Table,
) -> Result<(), Failed> {
    if Command::new("redis-server").arg("--version").output().is_err() {
        table.row("redis: not measured", 0.0, "", "redis-server is not installed");
        return Ok(());
    }
    let server = Server::start(directory)?;
    pairs(runtime, size, &server, table)?;
    replays(runtime, size, &server, directory, table)?;
    drop(server);
    let records = records.map_or(RECORDS, |records| records as usize);
    memory(runtime, records, &Server::start(directory)?, table)
}

fn open(runtime: &Runtime, server: &Server, prefix: &str) -> Result<Arc<RedisStore>, Failed> {
    let options = RedisStore::options(&server.url())?.prefix(prefix)?;
    Ok(Arc::new(runtime.block_on(options.create())?))
}

fn pairs(runtime: &Runtime, size: usize, server: &Server, table: &mut Table) -> Result<(), Failed> {
    let store = open(runtime, server, "b")?;
    let (mut ours, mut floor, mut times) = (0.0_f64, 0.0_f64, None);
    for round in 0..2 {
        floor = floor.max(same_scripts(server, 40_000 * size, round)?);
        let loaded = load::run(runtime, &store, CALLERS, 400 * size, &format!("redis-{round}"))?;
        if loaded.pairs_per_s > ours {
            ours = loaded.pairs_per_s;
            times = Some(loaded);
        }
    }
    let tool = "redis: claim+finish pairs/s, redis-benchmark with the same scripts";
    table.row(tool, floor, "/s", "the floor; 64 under way on 2 connections");
    let ratio = format!("{:.2} × the floor", ours / floor);
    table.row("redis: claim+finish pairs/s, 64 callers", ours, "/s", ratio);
    if let Some(mut loaded) = times {
        for (name, times) in [("claim", &mut loaded.claims), ("finish", &mut loaded.finishes)] {
            let (p50, p99) = (times.percentile_us(0.5) / 1_000.0, times.percentile_us(0.99) / 1_000.0);
            table.row(&format!("redis: {name} p99, 64 callers"), p99, "ms", format!("p50 {p50:.2} ms"));
        }
    }
    Ok(())
}

/// What the server can do: the same scripts on the same kind of records, by a client that does nothing else.
fn same_scripts(server: &Server, requests: usize, round: usize) -> Result<f64, Failed> {
    let keys = requests * 4;
    let tag = format!("floor{round}{{00}}");
    let (marker, open) = (tag.clone(), format!("{tag}o"));
    server.cli(&["HSET", &marker, "g", "bench", "t", "0"])?;
    let hash = |text: &str| -> Result<String, Failed> {
        Ok(server.cli(&["SCRIPT", "LOAD", &format!("{BEGIN}\n{text}")])?.trim().to_owned())
    };
    // An identity as a record has it: lengths, operation, key, scope.
    let identity = "\u{e}\u{10}__payment.create__rand_int__keyacme";
    let (print, owner, outcome) = ("f".repeat(40), "o".repeat(16), "x".repeat(206));
    // Two bytes of scope length, which must not be zero bytes on a command line: a longer identity, all the same.
    let record = format!("{tag}c__rand_int__");
    let claim = [
        "EVALSHA",
        &hash(CLAIM)?,
        "3",
        &marker,
        &record,
        &open,
        "__rand_int__",
        identity,
        &print,
        &owner,
        "0",
        "30000",
    ];
    let claims = server.load_tool(requests, keys * 1_000, &claim)?;
    // Records of a known owner and epoch, so that the outcome is taken.
    let made = format!(
        "for n = 0, {keys} - 1 do redis.call('SET', '{tag}f' .. string.format('%012d', n), \
         struct.pack('>BI7I6I6I6I2', 0, 7, 1, 1, 281474976710655, 1) .. '{owner}' .. '{print}' \
         .. struct.pack('>BBI2', 14, 20, 4) .. string.rep('i', 38)) end"
    );
    server.cli(&["EVAL", &made, "0"])?;
    let record = format!("{tag}f__rand_int__");
    let finish = [
        "EVALSHA",
        &hash(FINISH)?,
        "3",
        &marker,
        &record,
        &open,
        "__rand_int__",
        &owner,
        "7",
        "2",
        "86400000",
        &outcome,
    ];
    let finishes = server.load_tool(requests, keys, &finish)?;
    Ok(1.0 / (1.0 / claims + 1.0 / finishes))
}

fn replays(
    runtime: &Runtime,
    size: usize,
    server: &Server,
    directory: &Directory,
    table: &mut Table,
) -> Result<(), Failed> {
    let plain = open(runtime, server, "r")?;
    let sqlite = runtime.block_on(SqliteStore::open(directory.0.join("tiered")))?;
    let metrics = Metrics::new();
    let url = format!("{}&prefix=t", server.url());
    let tiered = Arc::new(runtime.block_on(TieredStore::open(sqlite, &url, &metrics))?);
    for n in 0..REPLAYED {
        let intent = load::intent(&format!("replay-{n}"))?;
        runtime.block_on(load::pair(&*plain, intent.clone(), None))?;
        runtime.block_on(load::pair(&*tiered, intent, None))?;
    }
    let stored =
        |metrics: &Metrics| metrics.render().contains(&format!("fill_total{{result=\"stored\"}} {REPLAYED}"));
    let until = Instant::now() + Duration::from_secs(30);
    while !stored(&metrics) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (mut by_plain, mut by_tiered) = (0.0_f64, 0.0_f64);
    for _ in 0..2 {
        by_plain = by_plain.max(replay_rate(runtime, &plain, 800 * size)?);
        by_tiered = by_tiered.max(replay_rate(runtime, &tiered, 800 * size)?);
    }
    table.row("redis: replays/s, 64 callers", by_plain, "/s", "plain Redis");
    let ratio = format!("{:.2} × plain Redis", by_tiered / by_plain);
    table.row("tiered: replays/s, 64 callers, over SQLite", by_tiered, "/s", ratio);
    Ok(())
}

fn replay_rate<S: Store>(runtime: &Runtime, store: &Arc<S>, each: usize) -> Result<f64, Failed> {
    let begin = Instant::now();
    let tasks: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let store = Arc::clone(store);
            runtime.spawn(async move {
                for n in 0..each {
                    let intent = load::intent(&format!("replay-{}", (caller * each + n) % REPLAYED))?;
                    match store.claim(claim_of(intent)).await? {
                        Claimed::Replay(_) => {}
                        _ => return Err("a finished intent was not replayed".into()),
                    }
                }
                Ok::<_, Failed>(())
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task)??;
    }
    Ok((CALLERS * each) as f64 / begin.elapsed().as_secs_f64())
}

fn claim_of(intent: Intent) -> Claim {
    let (fingerprint, owner) = (load::fingerprint(), Owner::random());
    let window = semel::intent::guard_expiry::KeyWindow::ENDLESS;
    Claim { intent, fingerprint, owner, effect: Effect::Opaque, lease_ms: 30_000, window }
}

/// Records with a UUID as their key and an outcome of 100 bytes, and what bare keys with a value of that size take.
fn memory(runtime: &Runtime, records: usize, server: &Server, table: &mut Table) -> Result<(), Failed> {
    let store = open(runtime, server, "s")?;
    let before = server.used_bytes()?;
    let tasks: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let store = Arc::clone(&store);
            runtime.spawn(async move {
                for _ in (caller..records).step_by(CALLERS) {
                    let scope = Scope::tenant("acme")?;
                    let intent = Intent::new(scope, Operation::new("payment.create")?, Key::random());
                    let Claimed::Run(ticket) = store.claim(claim_of(intent)).await? else {
                        return Err("a fresh intent did not run".into());
                    };
                    let outcome = Outcome::new(201, "x".repeat(94));
                    let finish = Finish {
                        verdict: Verdict::Completed,
                        outcome: Some(outcome),
                        retention: Retention::DAY,
                    };
                    store.finish(ticket, finish).await?;
                }
                Ok::<_, Failed>(())
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task)??;
    }
    let ours = (server.used_bytes()? - before) / records as f64;
    server.cli(&["FLUSHALL"])?;
    let before = server.used_bytes()?;
    let bare = format!(
        "for n = 1, {records} do redis.call('SET', string.format('%021d', n), string.rep('x', 100), 'PX', 86400000) end"
    );
    server.cli(&["EVAL", &bare, "0"])?;
    let floor = (server.used_bytes()? - before) / records as f64;
    let note = format!("{records} keys of 21 bytes with an expiry");
    table.row("redis: bytes per bare value of 100 bytes", floor, "bytes", note);
    let note = format!("{records} records, 100-byte outcome, UUID key, all of Redis' overhead");
    table.row("redis: bytes per record", ours, "bytes", note);
    Ok(())
}
