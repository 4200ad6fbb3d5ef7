//! Payments by card: the provider's own file says what was charged, and it is not ours.

use std::path::{Path, PathBuf};
use std::thread;

use semel::crash;
use tempfile::TempDir;

use crate::client::{self, Answer};
use crate::database::Database;
use crate::service::{PATIENCE, Service, known};

struct Cards {
    _directory: TempDir,
    path: PathBuf,
}

impl Cards {
    fn new() -> Self {
        let directory = testkit::scratch::directory();
        let path = directory.path().join("cards");
        Self { _directory: directory, path }
    }

    fn start(&self, database: &Database, crash_at: Option<&str>) -> Service {
        Service::with_cards(database, &self.path, crash_at)
    }

    /// What the provider has charged, in cents.
    fn charges(&self) -> Vec<i64> {
        charges(&self.path)
    }
}

fn charges(path: &Path) -> Vec<i64> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| line.split(' ').nth(1).unwrap().parse().unwrap()).collect()
}

fn settled(service: &Service, key: &str, amount: i64) -> Answer {
    known(|| client::pay_by_card(service.address, key, amount).unwrap())
}

#[test]
fn a_card_is_charged_once_however_often_it_is_asked_for() {
    for database in Database::all() {
        let cards = Cards::new();
        let service = cards.start(&database, None);
        let answers: Vec<_> = thread::scope(|scope| {
            let asked: Vec<_> = (0..8).map(|_| scope.spawn(|| settled(&service, "order-1", 4_200))).collect();
            asked.into_iter().map(|asked| asked.join().unwrap()).collect()
        });
        for answer in &answers {
            assert_eq!((answer.status, answer.id()), (201, answers[0].id()));
        }
        assert_eq!(answers.iter().filter(|answer| !answer.replayed).count(), 1);
        assert_eq!(cards.charges(), [4_200]);
        database.judge(1, 0);

        // Declined is an answer, and stays one.
        for again in [false, true] {
            let declined = settled(&service, "order-2", 2_000_000);
            assert_eq!((declined.status, declined.replayed), (402, again));
        }
        // The same key for another way to pay is another request.
        assert_eq!(service.pay("order-1", 4_200).status, 409);
        // When its answer is no longer kept, the provider is not even asked.
        database.sweep();
        let late = settled(&service, "order-1", 4_200);
        assert_eq!((late.status, late.body["code"].as_str()), (409, Some("ALREADY_BOOKED")));
        assert_eq!(cards.charges(), [4_200]);
        assert_eq!(database.number("SELECT count(*) FROM reserved"), 0);
        database.judge_books(1, 0);
    }
}

/// Slow: four points on each database, each with two processes.
#[test]
fn killed_between_the_charge_and_the_booking_it_resumes_and_charges_once() {
    // Each phase passes every point once, so the second time is in the last one: the card has been charged.
    for (point, nth, charged, booked) in [
        (crash::AFTER_FINISH, 1, 0, 0),
        (crash::BEFORE_EFFECT, 2, 1, 0),
        (crash::AFTER_FINISH, 2, 1, 0),
        (crash::BEFORE_ANSWER, 1, 1, 1),
    ] {
        for database in Database::all() {
            let (cards, when) = (Cards::new(), format!("{point}:{nth}"));
            let mut first = cards.start(&database, Some(&when));
            let address = first.address;
            thread::scope(|scope| {
                let asked = scope.spawn(move || client::pay_by_card(address, "order-1", 4_200));
                assert_eq!(first.child.wait_for_point(PATIENCE).unwrap(), point);
                assert_eq!(
                    (cards.charges().len(), database.payments("order-1")),
                    (charged, booked),
                    "{when}"
                );
                database.judge_events();
                first.child.kill().unwrap();
                assert!(asked.join().unwrap().is_err(), "the client got no answer");
            });
            let reserved = database.text("SELECT max(payment) FROM reserved");
            assert_eq!(reserved.is_some(), (charged, booked) == (1, 0), "{when}: before the retry");

            let second = cards.start(&database, None);
            let retried = settled(&second, "order-1", 4_200);
            assert_eq!((retried.status, retried.replayed), (201, booked == 1), "{when}");
            if let Some(reserved) = reserved {
                assert_eq!(retried.id(), reserved, "{when}: the first phase was not run again");
            }
            let again = settled(&second, "order-1", 4_200);
            assert_eq!((again.status, again.id(), again.replayed), (201, retried.id(), true), "{when}");
            assert_eq!(cards.charges(), [4_200], "{when}: charged once");
            assert_eq!(database.number("SELECT count(*) FROM semel_reference"), 1, "{when}");
            assert_eq!(database.number("SELECT count(*) FROM reserved"), 0, "{when}");
            database.judge(1, 0);
        }
    }
}

#[test]
fn without_a_provider_no_cards_are_taken() {
    let database = Database::sqlite();
    let service = Service::start(&database);
    assert_eq!(client::pay_by_card(service.address, "order-1", 4_200).unwrap().status, 400);
    database.judge(0, 0);
}
