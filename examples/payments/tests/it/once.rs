//! The same request again, at once, and with another amount.

use std::thread;

use crate::database::Database;
use crate::service::{Service, known};

#[test]
fn duplicates_at_once_are_one_payment_and_one_answer() {
    for database in Database::all() {
        let service = Service::start(&database);
        let answers: Vec<_> = thread::scope(|scope| {
            let asked: Vec<_> =
                (0..16).map(|_| scope.spawn(|| known(|| service.pay("order-1", 4_200)))).collect();
            asked.into_iter().map(|asked| asked.join().unwrap()).collect()
        });
        for answer in &answers {
            assert_eq!((answer.status, answer.id()), (201, answers[0].id()));
        }
        assert_eq!(answers.iter().filter(|answer| !answer.replayed).count(), 1);
        database.judge(1, 0);
        let by_key = service.get("/api/v1/payments/by-key/order-1");
        let by_id = service.get(&format!("/api/v1/payments/{}", answers[0].id()));
        assert_eq!((by_key.status, &by_key.body, &by_id.body), (200, &answers[0].body, &answers[0].body));
        for (account, balance) in [("revenue", 4_200), ("ana", -4_200)] {
            let answer = service.get(&format!("/api/v1/accounts/{account}/balance"));
            assert_eq!((answer.status, answer.body["balance"].as_i64()), (200, Some(balance)));
        }
    }
}

#[test]
fn a_key_stands_for_one_request() {
    for database in Database::all() {
        let service = Service::start(&database);
        assert_eq!(service.pay("order-1", 4_200).status, 201);
        let other = service.pay("order-1", 9_900);
        assert_eq!(other.status, 409);
        assert_eq!(other.body["code"], "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST");
        assert_eq!(service.pay("", 4_200).status, 400, "a payment needs a key");
        database.judge(1, 0);
    }
}

#[test]
fn what_is_refused_leaves_nothing_and_the_key_free() {
    for database in Database::all() {
        let service = Service::start(&database);
        assert_eq!(service.pay("order-1", -5).status, 400);
        assert_eq!(service.get("/api/v1/payments/by-key/order-1").status, 404);
        assert_eq!(service.get("/api/v1/accounts/ana/balance").status, 404);
        database.judge(0, 0);
        assert_eq!(service.pay("order-1", 5).status, 201);
        database.judge(1, 0);
    }
}
