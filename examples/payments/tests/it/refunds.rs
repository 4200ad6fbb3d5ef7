//! Money back: once, and never more than was paid.

use std::thread;

use crate::database::Database;
use crate::service::Service;

#[test]
fn a_refund_is_booked_once_and_more_than_is_left_is_refused() {
    for database in Database::all() {
        let service = Service::start(&database);
        let payment = service.pay("order-1", 4_200);
        let first = service.refund(payment.id(), "refund-1", 3_000);
        let again = service.refund(payment.id(), "refund-1", 3_000);
        assert_eq!((first.status, again.status, again.replayed), (201, 201, true));
        assert_eq!(first.body, again.body);
        assert_eq!(service.refund(payment.id(), "refund-2", 1_201).status, 422);
        assert_eq!(service.refund("pay_unknown", "refund-3", 1).status, 404);
        // Nothing happened under that key, so it may be used for what is left.
        assert_eq!(service.refund(payment.id(), "refund-2", 1_200).status, 201);
        database.judge(1, 2);
        let left = service.get(&format!("/api/v1/payments/{}", payment.id()));
        assert_eq!(left.body["refunded"], 4_200);
    }
}

#[test]
fn refunds_at_once_never_give_back_more_than_was_paid() {
    for database in Database::all() {
        let service = Service::start(&database);
        let payment = service.pay("order-1", 4_200);
        let codes: Vec<u16> = thread::scope(|scope| {
            let refund = |n| service.refund(payment.id(), &format!("refund-{n}"), 1_000).status;
            let asked: Vec<_> = (0..8).map(|n| scope.spawn(move || refund(n))).collect();
            asked.into_iter().map(|asked| asked.join().unwrap()).collect()
        });
        assert_eq!(codes.iter().filter(|code| **code == 201).count(), 4, "{codes:?}");
        assert_eq!(codes.iter().filter(|code| **code == 422).count(), 4, "{codes:?}");
        database.judge(1, 4);
    }
}
