//! Orders: the ledgers of stock and bank and the tables say what happened, and neither is the saga's journal.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};
use semel::crash;
use tempfile::TempDir;
use testkit::child::Child;

use crate::client::{Answer, send};
use crate::database::Database;
use crate::service::PATIENCE;

/// The simulated servers, each a process, and the database of the service.
struct Place {
    database: Database,
    directory: TempDir,
    stock: Server,
    bank: Server,
}

/// A process that listens.
struct Server {
    child: Child,
    address: SocketAddr,
}

/// What there is of all orders.
#[derive(Debug, PartialEq, Eq, Default)]
struct Seen {
    orders: i64,
    cancelled: i64,
    held: i64,
    released: i64,
    charged: i64,
    notices: i64,
    events: i64,
}

const COMPLETE: Seen =
    Seen { orders: 1, cancelled: 0, held: 1, released: 0, charged: 1, notices: 1, events: 1 };
/// Cancelled after the stock was reserved.
const DECLINED: Seen =
    Seen { orders: 1, cancelled: 1, held: 1, released: 1, charged: 0, notices: 0, events: 0 };
/// Cancelled because there was none.
const SOLD_OUT: Seen =
    Seen { orders: 1, cancelled: 1, held: 0, released: 0, charged: 0, notices: 0, events: 0 };
const NOTHING: Seen =
    Seen { orders: 0, cancelled: 0, held: 0, released: 0, charged: 0, notices: 0, events: 0 };

impl Seen {
    fn and(self, other: &Self) -> Self {
        Self {
            orders: self.orders + other.orders,
            cancelled: self.cancelled + other.cancelled,
            held: self.held + other.held,
            released: self.released + other.released,
            charged: self.charged + other.charged,
            notices: self.notices + other.notices,
            events: self.events + other.events,
        }
    }
}

fn start(words: &[&str], crash_at: Option<&str>) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
    command.args(words).args(["--serve", "127.0.0.1:0"]);
    let mut child = Child::spawn(command, crash_at).unwrap();
    let line = child
        .next_line(PATIENCE)
        .unwrap_or_else(|error| panic!("{words:?} does not start: {error}; {:?}", child.wait(PATIENCE)));
    let address = line.strip_prefix("listening on ").unwrap().parse().unwrap();
    Server { child, address }
}

impl Place {
    fn new(database: Database, seed: Option<&str>) -> Self {
        let directory = testkit::scratch::directory();
        let server = |what: &str| {
            let ledger = ledger(directory.path(), what);
            let mut words = vec![what, "--ledger", ledger.to_str().unwrap()];
            words.extend(seed.into_iter().flat_map(|seed| ["--seed", seed]));
            start(&words, None)
        };
        let (stock, bank) = (server("stock"), server("bank"));
        Self { database, stock, bank, directory }
    }

    fn service(&self, crash_at: Option<&str>) -> Server {
        let [stock, bank] = [&self.stock, &self.bank].map(|server| format!("http://{}", server.address));
        let url = self.database.url();
        start(&["orders", "--store", &url, "--stock", &stock, "--bank", &bank], crash_at)
    }

    /// No test waits for a lease: it is ended in the table.
    fn end_leases(&self) {
        self.database.write("UPDATE semel_saga_worker SET lease_until = 0");
    }

    fn effects(&self, server: &str, what: &str) -> i64 {
        let path = ledger(self.directory.path(), server);
        let judge = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        judge.busy_timeout(PATIENCE).unwrap();
        let count = "SELECT count(*) FROM effect WHERE what = ?1";
        judge.query_row(count, [what], |row| row.get(0)).unwrap()
    }

    /// Releases of what was held: of a key that held nothing there may be one too, and it does nothing.
    fn released(&self) -> i64 {
        let path = ledger(self.directory.path(), "stock");
        let judge = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        judge.busy_timeout(PATIENCE).unwrap();
        let count = "SELECT count(*) FROM effect WHERE what = 'released'
                     AND key IN (SELECT key FROM effect WHERE what = 'held')";
        judge.query_row(count, [], |row| row.get(0)).unwrap()
    }

    fn seen(&self) -> Seen {
        let number = |from: &str| self.database.number(&format!("SELECT count(*) FROM {from}"));
        Seen {
            orders: number("shop_order"),
            cancelled: number("shop_order WHERE cancelled"),
            held: self.effects("stock", "held"),
            released: self.released(),
            charged: self.effects("bank", "charged"),
            notices: number("notice"),
            events: number("semel_outbox"),
        }
    }
}

fn ledger(directory: &Path, server: &str) -> PathBuf {
    directory.join(format!("{server}.db"))
}

fn ask(service: SocketAddr, key: &str, sku: &str, cents: i64) -> std::io::Result<Answer> {
    send(service, "POST", "/api/v1/orders", key, &format!(r#"{{"sku": "{sku}", "cents": {cents}}}"#))
}

/// Asks until the order has ended.
fn place(service: SocketAddr, key: &str, sku: &str, cents: i64) -> Answer {
    let until = Instant::now() + PATIENCE;
    loop {
        match ask(service, key, sku, cents).unwrap() {
            Answer { status: 202 | 503, body, .. } => assert!(Instant::now() < until, "{key}: {body}"),
            answer => return answer,
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn an_order_of_each_kind_is_done_or_undone_and_its_key_stands_for_it(database: Database) {
    let place_of = Place::new(database, None);
    let service = place_of.service(None);
    let mut expected = NOTHING;
    for (key, sku, cents, status, seen) in [
        ("order-1", "book", 4_200, 201, &COMPLETE),
        ("no-price", "book", 0, 422, &NOTHING),
        ("sold-out", "unicorn", 4_200, 422, &SOLD_OUT),
        ("declined", "book", 1_000_001, 422, &DECLINED),
    ] {
        let first = place(service.address, key, sku, cents);
        assert_eq!(first.status, status, "{first:?}");
        assert_eq!(place(service.address, key, sku, cents), first, "{key}: another answer");
        expected = expected.and(seen);
        assert_eq!(place_of.seen(), expected, "{key}");
    }
    // The same key for something else is refused, and starts nothing.
    assert_eq!(place(service.address, "order-1", "book", 4_300).status, 409);
    assert_eq!(ask(service.address, "", "book", 4_200).unwrap().status, 400);
    assert_eq!(place_of.seen(), expected);
}

/// Kills the service at a point and lets another one go on.
fn killed(point: &str, place_of: &Place, sku: &str, cents: i64) -> Answer {
    let mut first = place_of.service(Some(point));
    let address = first.address;
    thread::scope(|scope| {
        let asked = scope.spawn(move || ask(address, point, sku, cents));
        let stopped_at = first.child.wait_for_point(PATIENCE).unwrap();
        assert!(point.starts_with(&stopped_at), "{stopped_at} instead of {point}");
        first.child.kill().unwrap();
        assert!(asked.join().unwrap().is_err(), "the client got no answer");
    });
    place_of.end_leases();
    let second = place_of.service(None);
    let answer = place(second.address, point, sku, cents);
    assert_eq!(place(second.address, point, sku, cents), answer, "{point}: another answer");
    answer
}

/// Each point of a saga, and the calls of both participants, killed before and after the effect.
///
/// Slow: a service for each point, and lookups that wait until the charge can no longer arrive.
fn killed_at_each_point_an_order_is_done_once(database: Database) {
    let place_of = Place::new(database, None);
    let mut expected = NOTHING;
    let later = [
        // The reservation has returned; then the charge has: the bank's list says that it happened.
        format!("{}:1", crash::AFTER_SAGA_CALL),
        format!("{}:2", crash::AFTER_SAGA_CALL),
        // The row of the order, and the notice.
        format!("{}:2", crash::BEFORE_SAGA_ATOMIC),
        format!("{}:2", crash::AFTER_SAGA_ATOMIC),
        // What begins is in the journal; it was not called.
        format!("{}:2", crash::AFTER_SAGA_WRITE),
    ];
    let points = crash::IN_SAGA.into_iter().filter(|point| *point != crash::AFTER_SAGA_CALL);
    for point in points.map(str::to_owned).chain(later) {
        let answer = killed(&point, &place_of, "book", 4_200);
        assert_eq!(answer.status, 201, "{point}: {answer:?}");
        expected = expected.and(&COMPLETE);
        assert_eq!(place_of.seen(), expected, "killed at {point}");
    }
}

/// Around the refusal, and around each undo.
///
/// Slow: a service for each point, and lookups that wait until the charge can no longer arrive.
fn killed_while_it_is_undone_an_order_leaves_nothing(database: Database) {
    let place_of = Place::new(database, None);
    let mut expected = NOTHING;
    for point in [
        format!("{}:2", crash::AFTER_SAGA_CALL),
        format!("{}:3", crash::AFTER_SAGA_CALL),
        format!("{}:2", crash::BEFORE_SAGA_ATOMIC),
        format!("{}:2", crash::AFTER_SAGA_ATOMIC),
    ] {
        let answer = killed(&point, &place_of, "book", 1_000_001);
        assert_eq!(answer.status, 422, "{point}: {answer:?}");
        expected = expected.and(&DECLINED);
        assert_eq!(place_of.seen(), expected, "killed at {point}");
    }
}

/// Stock and bank lose requests and answers, fail before and after the effect, and are slow. With this seed two charges
/// happen and are not answered.
///
/// Slow: lost answers are waited for, and then looked up.
fn whatever_the_participants_lose_orders_are_all_or_undone(database: Database) {
    const ORDERS: i64 = 24;
    let place_of = Place::new(database, Some("95"));
    let service = place_of.service(None);
    let kind = |n: i64| match n % 6 {
        4 => ("unicorn", 100 + n, 422, &SOLD_OUT),
        5 => ("book", 1_000_001 + n, 422, &DECLINED),
        _ => ("book", 100 + n, 201, &COMPLETE),
    };
    thread::scope(|scope| {
        for n in 0..ORDERS {
            let (sku, cents, status, _) = kind(n);
            scope.spawn(move || {
                let answer = place(service.address, &format!("order-{n}"), sku, cents);
                assert_eq!(answer.status, status, "order-{n}: {answer:?}");
            });
        }
    });
    let expected = (0..ORDERS).fold(NOTHING, |all, n| all.and(kind(n).3));
    assert_eq!(place_of.seen(), expected);
}

macro_rules! on_each_database {
    ($($law:ident),+ $(,)?) => {
        mod sqlite {
            $(
                #[test]
                fn $law() {
                    super::$law(super::Database::sqlite());
                }
            )+
        }
        mod postgres {
            $(
                #[test]
                fn $law() {
                    let Some(database) = super::Database::postgres() else { return };
                    super::$law(database);
                }
            )+
        }
    };
}

on_each_database!(
    an_order_of_each_kind_is_done_or_undone_and_its_key_stands_for_it,
    killed_at_each_point_an_order_is_done_once,
    killed_while_it_is_undone_an_order_leaves_nothing,
    whatever_the_participants_lose_orders_are_all_or_undone,
);
