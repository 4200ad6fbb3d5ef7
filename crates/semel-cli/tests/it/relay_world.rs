//! Test fixture: an outbox in a file, and a relay on it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;
use testkit::child::{Child, Finished};

use crate::receiver::SOON;
use crate::semel::{Ran, command, semel};

pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// An SQLite file with an outbox.
pub(crate) struct Outbox {
    directory: TempDir,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        let outbox = Self { directory: testkit::scratch::directory() };
        semel(&["migrate", "--outbox", &outbox.url()]).out();
        outbox
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("app.db")
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    pub(crate) fn sql(&self, sql: &str) {
        let connection = rusqlite::Connection::open(self.path()).unwrap();
        connection.busy_timeout(SOON).unwrap();
        connection.execute_batch(sql).unwrap();
    }

    /// As a service in any language would: an INSERT.
    pub(crate) fn append(&self, topic: &str, key: &str, payload: &str) {
        let connection = rusqlite::Connection::open(self.path()).unwrap();
        connection.busy_timeout(SOON).unwrap();
        let insert =
            "INSERT INTO semel_outbox (topic, type, key, payload) VALUES (?1, 'paid', ?2, CAST(?3 AS BLOB))";
        connection.execute(insert, [topic, key, payload]).unwrap();
    }

    /// `semel outbox …` on it.
    pub(crate) fn semel(&self, args: &[&str]) -> Ran {
        semel(&[&["outbox", "--from", &self.url()], args].concat())
    }

    /// The states of all events, oldest first.
    pub(crate) fn states(&self) -> Vec<String> {
        let listed = self.semel(&["ls", "--oldest-first", "--json"]).json();
        listed["events"].as_array().unwrap().iter().map(|event| text(&event["state"])).collect()
    }

    /// Waits until the states satisfy the condition.
    pub(crate) fn wait_for_states(&self, states: &[&str]) {
        let until = Instant::now() + SOON;
        while self.states() != states {
            assert!(Instant::now() < until, "{:?} instead of {states:?}", self.states());
        }
    }

    pub(crate) fn parked(&self) -> Vec<Value> {
        self.semel(&["parked", "--json"]).json()["events"].as_array().unwrap().clone()
    }
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// A running relay.
pub(crate) struct Relay {
    pub(crate) admin: SocketAddr,
    child: Child,
}

impl Relay {
    pub(crate) fn start(from: &str, to: &str, args: &[&str]) -> Self {
        let base = ["relay", "--from", from, "--to", to, "--admin", "127.0.0.1:0", "--lease", "2s"];
        let mut command = command(&[&base[..], args].concat());
        command.env("SEMEL_TEST_HOOK", SECRET);
        Self::spawn(command, "relaying from ")
    }

    /// Starts any long-running command that has an admin listener.
    pub(crate) fn spawn(command: std::process::Command, says: &str) -> Self {
        let mut child = Child::spawn(command, None).unwrap();
        let line = child.next_line(SOON).unwrap_or_else(|error| panic!("{error}"));
        assert!(line.starts_with(says), "{line}");
        let line = child.next_line(SOON).unwrap();
        Self { admin: line.strip_prefix("admin on ").unwrap().parse().unwrap(), child }
    }

    pub(crate) fn to_webhook(from: &Outbox, to: &str, args: &[&str]) -> Self {
        let hook = ["--webhook-secret", "env:SEMEL_TEST_HOOK", "--webhook-allow-private"];
        Self::start(&from.url(), to, &[&hook[..], args].concat())
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// The value of a series, if it exists.
    pub(crate) fn metric(&self, series: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        line.parse().ok()
    }

    pub(crate) fn wait_for_metric(&self, series: &str, fits: impl Fn(f64) -> bool) {
        let until = Instant::now() + SOON;
        while !self.metric(series).is_some_and(&fits) {
            assert!(Instant::now() < until, "{series}\n{}", self.get("/metrics").1);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    pub(crate) fn wait_for_ready(&self, status: u16) -> String {
        let until = Instant::now() + SOON;
        loop {
            let (now, why) = self.get("/readyz");
            if now == status {
                return why;
            }
            assert!(Instant::now() < until, "{now}: {why}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Waits for a line of its log.
    pub(crate) fn wait_for_said(&mut self, text: &str) -> String {
        self.child.wait_for_said(text, SOON).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Stops it with SIGTERM.
    pub(crate) fn stop(self) -> Finished {
        self.child.terminate().unwrap();
        self.ended()
    }

    /// Kills it with SIGKILL.
    #[cfg(feature = "kafka")]
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
    }

    fn ended(mut self) -> Finished {
        self.child.wait(SOON).unwrap()
    }
}
