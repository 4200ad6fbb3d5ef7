//! Killed around the commit and asked again: it happened before it, or not at all.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use semel::crash;

use crate::client::{self, Answer};
use crate::database::Database;
use crate::service::{PATIENCE, Service};

/// Only behind the last point the commit has been made.
fn is_committed(point: &str) -> bool {
    point == crash::BEFORE_ANSWER
}

/// Kills a service that stands at the point because of `ask`, and returns what the next one answers.
fn kill_and_retry(
    database: &Database,
    point: &str,
    ask: impl Fn(std::net::SocketAddr) -> std::io::Result<Answer> + Sync,
    while_it_stands: impl FnOnce(),
) -> Answer {
    let mut first = Service::start_with(database, None, Some(point));
    let address = first.address;
    thread::scope(|scope| {
        let asked = scope.spawn(|| ask(address));
        assert_eq!(first.child.wait_for_point(PATIENCE).unwrap(), point);
        while_it_stands();
        first.child.kill().unwrap();
        assert!(asked.join().unwrap().is_err(), "the client got no answer");
    });
    let second = Service::start(database);
    let retried = ask(second.address).unwrap();
    let again = ask(second.address).unwrap();
    assert_eq!((again.status, again.id(), again.replayed), (201, retried.id(), true));
    retried
}

/// Slow: every point on each database, each with two processes.
#[test]
fn a_payment_killed_at_every_point_is_booked_once_and_never_held() {
    for database in Database::all() {
        for (n, point) in crash::ALL.into_iter().enumerate() {
            let key = format!("order-{point}");
            let ask = |to| client::pay(to, &key, 4_200);
            let retried = kill_and_retry(&database, point, ask, || {
                assert_eq!(
                    database.payments(&key),
                    i64::from(is_committed(point)),
                    "{point}: before the retry"
                );
                database.judge_events();
            });
            // No lease to wait for: the retry is done at once, or it was done.
            assert_eq!((retried.status, retried.replayed), (201, is_committed(point)), "{point}");
            assert_eq!(database.payments(&key), 1, "{point}");
            database.judge(n as i64 + 1, 0);
        }
    }
}

#[test]
fn a_refund_killed_around_its_commit_is_booked_once() {
    for database in Database::all() {
        for (n, point) in
            [crash::AFTER_EFFECT, crash::AFTER_FINISH, crash::BEFORE_ANSWER].into_iter().enumerate()
        {
            let payment = Service::start(&database).pay(&format!("order-{point}"), 4_200);
            let key = format!("refund-{point}");
            let ask = |to| client::refund(to, payment.id(), &key, 3_000);
            let retried = kill_and_retry(&database, point, ask, || database.judge_events());
            assert_eq!((retried.status, retried.replayed), (201, is_committed(point)), "{point}");
            database.judge(n as i64 + 1, n as i64 + 1);
        }
    }
}

/// Duplicates from several clients, and SIGKILL at a random moment, twice.
#[test]
#[ignore = "prove: load and kills at random"]
fn under_load_and_killed_every_order_is_booked_once() {
    const ORDERS: usize = 60;
    const CLIENTS: usize = 8;
    for database in Database::all() {
        let running = Mutex::new(Service::start(&database));
        let address = || running.lock().unwrap().address;
        let pay = |n: usize| {
            let until = Instant::now() + PATIENCE;
            loop {
                match client::pay(address(), &format!("order-{n}"), 100 + n as i64) {
                    Ok(answer) if answer.status == 201 => return answer.id().to_owned(),
                    // Killed, or another request is in flight.
                    Ok(Answer { status: 409 | 503, .. }) | Err(_) => thread::sleep(Duration::from_millis(10)),
                    Ok(other) => panic!("{other:?}"),
                }
                assert!(Instant::now() < until, "order-{n} has no answer");
            }
        };
        let all = thread::scope(|scope| {
            // Each order is sent by two clients.
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let orders = (0..ORDERS).filter(move |n| n % (CLIENTS / 2) == client % (CLIENTS / 2));
                    scope.spawn(move || orders.map(|n| (n, pay(n))).collect::<Vec<_>>())
                })
                .collect();
            for part in [1, 2] {
                let until = Instant::now() + PATIENCE;
                while database.number("SELECT count(*) FROM payment") < (ORDERS / 3 * part) as i64 {
                    assert!(Instant::now() < until, "the load stands still");
                    thread::sleep(Duration::from_millis(2));
                }
                let mut service = running.lock().unwrap();
                service.child.kill().unwrap();
                *service = Service::start(&database);
            }
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect::<Vec<_>>()
        });
        for (n, id) in &all {
            assert!(
                all.iter().all(|(other, same)| other != n || same == id),
                "order-{n} was answered with two"
            );
        }
        database.judge(ORDERS as i64, 0);
    }
}
