//! The commands on a store in Redis, and with Redis in front of a file, on a server of the test's own.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use testkit::child::Child;

use crate::semel::semel;
use crate::world::{World, completed};

pub(crate) struct Redis {
    server: Child,
    _directory: tempfile::TempDir,
    port: u16,
}

impl Redis {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(args: &[&str]) -> Self {
        if Command::new("redis-server").arg("--version").output().is_err() {
            testkit::services::install_packages(&["redis-server".to_owned()]).unwrap();
        }
        Self::start_at(testkit::services::spare_port(), args)
    }

    pub(crate) fn start_at(port: u16, args: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("redis-server");
        command.current_dir(directory.path()).args(["--bind", "127.0.0.1", "--save", "", "--port"]);
        command.arg(port.to_string()).args(args);
        let server = Child::spawn(command, None).unwrap();
        let redis = Self { server, _directory: directory, port };
        let until = Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "Redis does not come up");
            std::thread::sleep(Duration::from_millis(10));
        }
        redis
    }

    /// Kills it and returns its port.
    pub(crate) fn stop(mut self) -> u16 {
        self.server.kill().unwrap();
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn say(&self, words: &str) {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(format!("{words}\r\n").as_bytes()).unwrap();
        let mut answer = [0; 64];
        let len = stream.read(&mut answer).unwrap();
        assert!(answer[..len].starts_with(b"+OK"), "{:?}", String::from_utf8_lossy(&answer[..len]));
    }
}

#[test]
fn a_store_in_redis_is_made_by_hand_and_its_loss_accepted_by_hand() {
    let redis = Redis::start();
    let url = redis.url();
    let on = |args: &[&str]| semel(&[&["--store", &url], args].concat());
    let why = on(&["ls"]).failed(1);
    assert!(why.contains("has no store") && why.contains("semel migrate"), "{why}");
    assert_eq!(on(&["migrate"]).out(), "created, version 1\n");
    assert_eq!(on(&["migrate"]).out(), "nothing to do, version 1\n");
    on(&["ls", "--json"]).out();
    let whole = on(&["redis", "accept-loss", "--json"]).json();
    assert_eq!((&whole["missing"], &whole["accepted"]), (&json!(0), &json!(false)));

    redis.say("FLUSHALL");
    assert!(on(&["ls"]).failed(1).contains("accept-loss"));
    let looked = on(&["redis", "accept-loss"]);
    assert_eq!(looked.code, 1);
    assert!(looked.stdout.starts_with("1024 of 1024 buckets have lost their data"), "{looked:?}");
    assert!(looked.stderr.contains("--yes"), "{looked:?}");
    assert!(on(&["ls"]).failed(1).contains("accept-loss"), "looking changed something");
    let accepted = on(&["redis", "accept-loss", "--yes", "--json"]).json();
    assert_eq!((&accepted["missing"], &accepted["accepted"]), (&json!(0), &json!(true)));
    assert_ne!(accepted["generations"], whole["generations"]);
    on(&["ls", "--json"]).out();
}

#[test]
fn a_release_goes_through_the_cache() {
    let redis = Redis::start();
    let world = World::new();
    let id = completed().id().to_string();
    let release = |cache: &str| {
        world.semel(&["release", &id, "--yes", "--by", "ana", "--why", "again", "--cache", cache])
    };
    let refused = release("redis://127.0.0.1:1");
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("nothing was changed"), "{refused:?}");
    let done = release(&redis.url());
    assert_eq!(done.code, 0, "{done:?}");
    let wrong = release("sqlite:x.db");
    assert_eq!(wrong.code, 2, "{wrong:?}");
}

#[test]
fn a_new_lineage_is_another_one_each_time() {
    let world = World::new();
    let one = world.semel(&["migrate", "--new-lineage", "--json"]).json();
    let two = world.semel(&["migrate", "--new-lineage", "--json"]).json();
    assert_ne!(one["lineage"], two["lineage"]);
}
