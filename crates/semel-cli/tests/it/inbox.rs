//! `semel inbox`, and `semel migrate --inbox`.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use semel::blocking;
use semel::inbox::consumer::{Consumer, ConsumerOptions, Handler, HandlerError, Message};
use semel::inbox::dead_letter::DeadLetterStore;
use semel::source::memory::MemoryQueue;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::receiver::SOON;
use crate::semel::{Ran, semel};
use crate::world::block_on;

/// A database with an inbox, and a consumer for it.
struct Mail {
    directory: TempDir,
    queue: MemoryQueue,
}

/// A handler that dedups and counts, and refuses bad payloads until they are allowed.
struct Notes {
    path: String,
    mended: bool,
}

impl Handler for Notes {
    async fn handle(&self, messages: &[Message]) -> Result<(), HandlerError> {
        let mut db = Connection::open(&self.path).map_err(HandlerError::transient)?;
        db.busy_timeout(SOON).map_err(HandlerError::transient)?;
        let tx = db.transaction().map_err(HandlerError::transient)?;
        let marked = blocking::mark_all_tx(&semel::inbox::Inbox::new("mail").unwrap(), &tx, messages)?;
        for at in marked.fresh() {
            if !self.mended && messages[at].payload().starts_with(b"bad") {
                return Err(HandlerError::permanent("not a \u{1b}[2J note"));
            }
            tx.execute("INSERT INTO note VALUES (1)", []).map_err(HandlerError::transient)?;
        }
        blocking::end_tx(marked, &tx)?;
        tx.commit().map_err(HandlerError::transient)
    }
}

impl Mail {
    fn new() -> Self {
        let mail = Self { directory: testkit::scratch::directory(), queue: MemoryQueue::new("payments") };
        assert_eq!(semel(&["migrate", "--inbox", &mail.url()]).out(), "inbox: created, version 3\n");
        mail.database().execute_batch("CREATE TABLE note (n INTEGER)").unwrap();
        mail
    }

    fn path(&self) -> String {
        self.directory.path().join("mail.db").display().to_string()
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.path())
    }

    fn database(&self) -> Connection {
        let db = Connection::open(self.path()).unwrap();
        db.busy_timeout(SOON).unwrap();
        db
    }

    fn notes(&self) -> i64 {
        self.database().query_row("SELECT count(*) FROM note", [], |row| row.get(0)).unwrap()
    }

    fn push(&self, id: &str, payload: &str) {
        self.queue.push(Some("k"), &[("semel-id", id), ("content-type", "text/plain")], payload.to_owned());
    }

    fn semel(&self, args: &[&str]) -> Ran {
        semel(&[&["inbox", "--inbox", &self.url()], args].concat())
    }

    fn letters(&self, args: &[&str]) -> Vec<Value> {
        self.semel(&[&["dead", "--json"], args].concat()).json()["letters"].as_array().unwrap().clone()
    }

    /// Consumes until the condition holds.
    fn consume(&self, mended: bool, holds: impl Fn() -> bool) {
        block_on(async {
            let tables = DeadLetterStore::open(&self.url()).await.unwrap();
            let handler = Notes { path: self.path(), mended };
            let options = ConsumerOptions::default().dead_letter_poll_interval(Duration::from_millis(5));
            let consumer = Consumer::new("mail", self.queue.source(), handler, options).dead_letters(tables);
            let stop = Arc::new(consumer.stop_handle());
            let run = tokio::spawn(consumer.run());
            let held = async {
                while !holds() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(SOON, held).await.expect("it never comes to hold");
            stop.stop();
            run.await.unwrap().unwrap();
        });
    }

    /// Two dead letters, and one message that was handled.
    fn with_two_dead() -> Self {
        let mail = Self::new();
        for (id, payload) in [("e-1", "bad 1"), ("e-2", "good"), ("e-3", "bad\u{1b}3")] {
            mail.push(id, payload);
        }
        mail.consume(false, || mail.queue.is_empty());
        mail
    }
}

#[test]
fn the_tables_are_made_once_and_print_touches_nothing() {
    let mail = Mail::new();
    assert_eq!(semel(&["migrate", "--inbox", &mail.url()]).out(), "inbox: nothing to do, version 3\n");
    for contract in [&[][..], &["--contract"]] {
        let url = mail.url();
        let line = [&["migrate", "--inbox", &url, "--dry-run"], contract].concat();
        assert_eq!(semel(&line).out(), "inbox: nothing to do, version 3\n");
    }
    let sql = semel(&["migrate", "--inbox", "postgres://h/d", "--print"]).out();
    assert!(sql.contains("CREATE TABLE semel_inbox_dead"), "{sql}");
    let line = semel(&["migrate", "--inbox", "redis://h"]).failed(2);
    assert!(line.contains("no inbox is known"), "{line}");
}

#[test]
fn dead_letters_are_listed_filtered_and_paged() {
    let mail = Mail::with_two_dead();
    let listed = mail.letters(&[]);
    let ids: Vec<_> = listed.iter().map(|letter| letter["message_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["e-1", "e-3"]);
    assert_eq!((&listed[0]["state"], &listed[0]["attempts"]), (&json!("dead"), &json!(1)));
    assert_eq!(listed[0]["headers"][1], json!(["content-type", "text/plain"]));
    assert_eq!(mail.letters(&["--consumer", "other"]).len(), 0);
    assert_eq!(mail.letters(&["--consumer", "mail", "--source", "payments"]).len(), 2);
    let page = mail.semel(&["dead", "--limit", "1", "--json"]).json();
    let next = page["next"].to_string();
    assert_eq!(mail.letters(&["--after", &next])[0]["message_id"], "e-3");
    let short = mail.semel(&["dead", "--limit", "1"]);
    assert!(short.code == 0 && short.stderr.contains(&format!("--after {next}")), "{short:?}");
    let table = mail.semel(&["dead"]).out();
    assert!(table.contains("e-3") && !table.contains('\u{1b}'), "{table:?}");
    let counted = mail.semel(&["ls", "--json"]).json();
    assert_eq!((&counted["consumers"][0]["dead"], &counted["consumers"][0]["retry"]), (&json!(2), &json!(0)));
    assert!(mail.semel(&["ls"]).out().contains("payments"));
}

#[test]
fn a_letter_is_shown_with_what_can_be_done() {
    let mail = Mail::with_two_dead();
    let number = mail.letters(&[])[0]["id"].to_string();
    let shown = mail.semel(&["show", &number]).out();
    assert!(shown.contains(&format!("semel inbox retry {number}\n")), "{shown}");
    assert!(shown.contains("    bad 1\n") && !shown.contains('\u{1b}'), "{shown:?}");
    let other = mail.letters(&[])[1]["id"].to_string();
    assert_eq!(mail.semel(&["show", &other, "--payload"]).out(), "bad\u{1b}3");
    assert!(mail.semel(&["show", "999"]).failed(1).contains("no dead letter 999"));
}

#[test]
fn a_retried_letter_is_handled_once_by_the_consumer() {
    let mail = Mail::with_two_dead();
    let numbers: Vec<String> = mail.letters(&[]).iter().map(|letter| letter["id"].to_string()).collect();
    let line = mail.semel(&["retry", &numbers[0], "999"]).failed(1);
    assert!(line.contains("nothing was changed"), "{line}");
    let said = mail.semel(&["retry", &numbers[0]]).out();
    assert_eq!(said, "1 dead letter will be retried at its consumer's next poll\n");
    assert_eq!(mail.letters(&[])[0]["state"], "retry");
    mail.consume(true, || mail.letters(&[]).len() == 1);
    assert_eq!(mail.notes(), 2);
    assert_eq!(mail.semel(&["retry", "--all", "--json"]).json(), json!({ "letters": 1 }));
    mail.consume(true, || mail.letters(&[]).is_empty());
    assert_eq!(mail.notes(), 3);
    assert_eq!(mail.semel(&["retry", "--all"]).out(), "no dead letters match\n");
}

#[test]
fn a_letter_is_dropped_only_when_that_is_said_twice_and_why() {
    let mail = Mail::with_two_dead();
    let number = mail.letters(&[])[0]["id"].to_string();
    assert!(mail.semel(&["drop", &number, "--yes"]).failed(2).contains("--why"));
    let line = mail.semel(&["drop", &number, "--why", "a test"]).failed(1);
    assert!(line.contains("nothing was changed") && line.contains("--yes"), "{line}");
    assert_eq!(mail.letters(&[]).len(), 2);
    let said = mail.semel(&["drop", &number, "--why", "a test", "--yes"]).out();
    assert!(said.contains("e-1 of payments"), "{said}");
    assert_eq!(mail.letters(&[]).len(), 1);
    let trace = mail.letters(&["--dropped"]);
    assert_eq!((&trace[0]["dropped_why"], &trace[0]["payload_bytes"]), (&json!("a test"), &json!(0)));
    let line = mail.semel(&["drop", &number, "--why", "a test", "--yes"]).failed(1);
    assert!(line.contains("no dead letter"), "{line}");
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let line = semel(&["inbox", "dead"]).failed(2);
    assert!(line.contains("--inbox") && line.contains("SEMEL_INBOX"), "{line}");
    let directory = testkit::scratch::directory();
    let url = format!("sqlite:{}", directory.path().join("no.db").display());
    assert!(semel(&["inbox", "dead", "--inbox", &url]).failed(2).contains("cannot be opened"));
    Connection::open(directory.path().join("no.db")).unwrap().execute_batch("CREATE TABLE t (n)").unwrap();
    let line = semel(&["inbox", "dead", "--inbox", &url]).failed(2);
    assert!(line.contains("semel migrate --inbox"), "{line}");
    assert!(Mail::new().semel(&["retry"]).failed(2).contains("--all"));
}
