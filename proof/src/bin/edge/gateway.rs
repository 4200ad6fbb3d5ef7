//! The gateway against nginx as a plain reverse proxy in front of the same upstream; and its memory.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::Failed;
use crate::layer::{best, row};
use crate::process::Process;
use crate::table::Table;
use crate::wrk::{self, Load};

const CONNECTIONS: usize = 64;
const ROUNDS: usize = 3;

pub(crate) fn measure(seconds: usize, table: &mut Table) -> Result<(), Failed> {
    let directory = Directory::new()?;
    let (_upstream, upstream) = Process::serve("bare")?;
    let (_nginx, nginx) = nginx(&upstream, &directory.0)?;
    let (_memory, memory) = gateway(&upstream, "memory:")?;
    let durable = format!("sqlite:{}", directory.0.join("gateway.db").display());
    let (_durable, durable) = gateway(&upstream, &durable)?;
    let mut rates: [Vec<_>; 5] = Default::default();
    for _ in 0..ROUNDS {
        rates[0].push(wrk::run(&nginx, Load::Get, CONNECTIONS, seconds)?);
        rates[1].push(wrk::run(&memory, Load::Get, CONNECTIONS, seconds)?);
        rates[2].push(wrk::run(&memory, Load::Fresh, CONNECTIONS, seconds)?);
        rates[3].push(wrk::run(&memory, Load::Repeated, CONNECTIONS, seconds)?);
        rates[4].push(wrk::run(&durable, Load::Fresh, CONNECTIONS, seconds)?);
    }
    let mut rates = rates.into_iter().map(best);
    let floor = rates.next().ok_or("nothing measured")?;
    row(table, "gateway: nginx, pass-through, 64 connections", &floor, "the floor".to_owned());
    let names =
        ["pass-through", "first calls, memory store", "replays, memory store", "first calls, SQLite durable"];
    for (name, rate) in names.into_iter().zip(rates) {
        row(table, &format!("gateway: {name}"), &rate, format!("{:.2} × nginx", rate.per_s / floor.per_s));
    }
    connections(&upstream, table)?;
    growth(&upstream, &directory.0, table)
}

/// Memory with many idle connections open.
fn connections(upstream: &str, table: &mut Table) -> Result<(), Failed> {
    let (gateway, address) = gateway(upstream, "memory:")?;
    let mut open = Vec::new();
    for wanted in [1, 1_000, 10_000] {
        while open.len() < wanted {
            open.push(TcpStream::connect(&address)?);
        }
        // Accepted when the one opened last is answered.
        wrk::run(&address, Load::Get, 1, 1)?;
        table.row(
            &format!("gateway: resident with {wanted} open connections"),
            gateway.resident_mib()?,
            "MiB",
            "",
        );
    }
    Ok(())
}

/// Memory after many guarded requests, on a store that is not memory itself.
fn growth(upstream: &str, directory: &Path, table: &mut Table) -> Result<(), Failed> {
    let store = format!("sqlite:{}", directory.join("growth.db").display());
    let (gateway, address) = gateway(upstream, &store)?;
    let after = |requests: f64| -> Result<f64, Failed> {
        let (mut done, begin) = (0.0, Instant::now());
        while done < requests {
            let rate = wrk::run(&address, Load::Fresh, CONNECTIONS, 5)?;
            done += rate.per_s * 5.0;
            if begin.elapsed() > Duration::from_secs(600) {
                return Err(format!("only {done:.0} requests in ten minutes").into());
            }
        }
        gateway.resident_mib()
    };
    let (early, late) = (after(20_000.0)?, after(180_000.0)?);
    let note = format!("{:.2} × after 20,000 ({early:.1} MiB)", late / early);
    table.row("gateway: resident after 200,000 guarded requests, SQLite", late, "MiB", note);
    Ok(())
}

fn gateway(upstream: &str, store: &str) -> Result<(Process, String), Failed> {
    let program = std::env::current_exe()?.with_file_name("semel");
    let mut command = Command::new(program);
    command.args(["gateway", "--single-tenant", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.args(["--upstream", &format!("http://{upstream}"), "--store", store]);
    let mut gateway = Process::start(&mut command)?;
    let line = gateway.line(|line| line.contains("127.0.0.1:"))?;
    let address =
        line.split_whitespace().find_map(|word| word.find("127.0.0.1:").map(|at| word[at..].to_owned()));
    Ok((gateway, address.ok_or("the gateway did not say where it listens")?))
}

fn nginx(upstream: &str, directory: &Path) -> Result<(Process, String), Failed> {
    // A port that was free a moment ago; nginx cannot be asked to choose.
    let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let at = |name: &str| directory.join(name).display().to_string();
    let temp: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {};\n", at(kind)))
        .concat();
    let config = format!(
        "daemon off;\nworker_processes auto;\npid {};\nerror_log {} error;\nevents {{ worker_connections 4096; }}\n\
         http {{\naccess_log off;\n{temp}upstream up {{ server {upstream}; keepalive 128; }}\n\
         server {{\nlisten {address};\nkeepalive_requests 1000000;\nlocation / {{\nproxy_pass http://up;\nproxy_http_version 1.1;\n\
         proxy_set_header Connection '';\n}}\n}}\n}}\n",
        at("nginx.pid"),
        at("nginx.log"),
    );
    let path = directory.join("nginx.conf");
    std::fs::write(&path, config)?;
    let nginx = Process::start(Command::new("nginx").arg("-e").arg(at("nginx.log")).arg("-c").arg(&path))?;
    let begin = Instant::now();
    while TcpStream::connect(&address).is_err() {
        if begin.elapsed() > Duration::from_secs(10) {
            return Err("nginx does not listen".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok((nginx, address))
}

struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self, Failed> {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
        std::fs::create_dir_all(&root)?;
        let path = root.canonicalize()?.join(format!("edge-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
