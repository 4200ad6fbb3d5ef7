//! A Redis Cluster of the test's own whose nodes die one by one.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use testkit::child::Child;
use testkit::services::{Lease, Service, require, spare_port};

use crate::faults::scene::PATIENCE;

/// Three masters without replicas, as the shared cluster; but these may be lost.
pub(crate) struct Cluster {
    nodes: Vec<Node>,
    _dir: TempDir,
    /// The shared cluster is not used: a run that goes without it goes without this one too.
    _lease: Lease,
}

struct Node {
    port: u16,
    bus: u16,
    dir: PathBuf,
    process: Option<Child>,
}

impl Cluster {
    pub(crate) fn start() -> Option<Self> {
        let lease = require(Service::RedisCluster)?;
        let dir = TempDir::new().unwrap();
        let mut ports = Vec::new();
        while ports.len() < 6 {
            let port = spare_port();
            if !ports.contains(&port) {
                ports.push(port);
            }
        }
        let node = |at: usize| {
            let dir = dir.path().join(at.to_string());
            std::fs::create_dir(&dir).unwrap();
            Node { port: ports[at], bus: ports[at + 3], dir, process: None }
        };
        let mut cluster = Self { nodes: (0..3).map(node).collect(), _dir: dir, _lease: lease };
        (0..3).for_each(|node| cluster.start_node(node));
        let nodes = cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port));
        let mut create = vec!["--cluster".to_owned(), "create".to_owned()];
        create.extend(nodes);
        create.extend(["--cluster-replicas", "0", "--cluster-yes"].map(str::to_owned));
        cli(&create);
        cluster.wait_until_whole(3);
        Some(cluster)
    }

    pub(crate) fn url(&self) -> String {
        self.nodes.iter().map(|node| format!("redis://127.0.0.1:{}", node.port)).collect::<Vec<_>>().join(",")
    }

    /// SIGKILL; the node is gone when this returns.
    pub(crate) fn kill_node(&mut self, node: usize) {
        self.nodes[node].process.take().unwrap().kill().unwrap();
    }

    /// Starts a node on what it has on disk.
    pub(crate) fn start_node(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        let (port, bus) = (node.port.to_string(), node.bus.to_string());
        let mut server = Command::new("redis-server");
        server.args(["--bind", "127.0.0.1", "--port", &port, "--cluster-port", &bus]);
        server.args(["--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--save", ""]);
        server.args(["--appendonly", "yes", "--appendfsync", "always"]).current_dir(&node.dir);
        node.process = Some(Child::spawn(server, None).unwrap());
        let started = Instant::now();
        while !self::ask(node.port, &["PING"]).contains("PONG") {
            assert!(started.elapsed() < PATIENCE, "a node does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns when the first `nodes` agree that every slot has somebody.
    pub(crate) fn wait_until_whole(&self, nodes: usize) {
        let started = Instant::now();
        let is_whole = |node: &Node| {
            let info = ask(node.port, &["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
        };
        while !self.nodes[..nodes].iter().all(is_whole) {
            assert!(started.elapsed() < PATIENCE, "the cluster does not become whole");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Moves every slot of the last node, with what is in it, to the others, as an operator's tool does.
    pub(crate) fn empty_last_node(&self) {
        let id = |node: usize| ask(self.nodes[node].port, &["CLUSTER", "MYID"]).trim().to_owned();
        let entry = format!("127.0.0.1:{}", self.nodes[0].port);
        let (from, slots) = (id(2), ["2731", "2731"]);
        for (to, slots) in slots.iter().enumerate() {
            let to = id(to);
            let words = ["--cluster", "reshard", &entry, "--cluster-from", &from, "--cluster-to", &to];
            let more = ["--cluster-slots", slots, "--cluster-pipeline", "100", "--cluster-yes"];
            cli(&words.iter().chain(&more).map(|word| (*word).to_owned()).collect::<Vec<_>>());
        }
    }

    /// Gives the slots of a node that is gone to the others, empty, as an operator's tool does.
    pub(crate) fn give_its_slots_away(&self) {
        let entry = format!("127.0.0.1:{}", self.nodes[0].port);
        let words = ["--cluster", "fix", &entry, "--cluster-fix-with-unreachable-masters", "--cluster-yes"];
        cli(&words.map(str::to_owned));
        self.wait_until_whole(2);
    }

    /// Empties one node.
    pub(crate) fn flush_node(&self, node: usize) {
        ask(self.nodes[node].port, &["FLUSHALL"]);
    }
}

fn ask(port: u16, words: &[&str]) -> String {
    let mut cli = Command::new("redis-cli");
    let said = cli.args(["-h", "127.0.0.1", "-p", &port.to_string()]).args(words).output().unwrap();
    String::from_utf8_lossy(&said.stdout).into_owned()
}

fn cli(words: &[String]) {
    // Some questions are asked in spite of `--cluster-yes`.
    let mut answers = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut answers, b"yes\nyes\nyes\n").unwrap();
    std::io::Seek::rewind(&mut answers).unwrap();
    let said = Command::new("redis-cli").args(words).stdin(answers).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success(), "redis-cli {words:?}\n{out}\n{err}");
}
