//! A key that comes again when its answer is no longer kept: the ledger still knows it.

use crate::database::Database;
use crate::service::Service;

#[test]
fn a_payment_whose_answer_was_swept_is_refused_and_not_booked_again() {
    for database in Database::all() {
        let service = Service::start(&database);
        let paid = service.pay("order-1", 4_200);
        database.judge(1, 0);
        database.sweep();
        // The same again, and with another amount: neither moves money, and neither is a payment.
        for amount in [4_200, 9_900] {
            let late = service.pay("order-1", amount);
            assert_eq!((late.status, late.body["code"].as_str()), (409, Some("ALREADY_BOOKED")), "{late:?}");
            database.judge_books(1, 0);
        }
        // What was paid is found by its key.
        assert_eq!(service.get("/api/v1/payments/by-key/order-1").body, paid.body);
        assert_eq!(service.pay("order-2", 4_200).status, 201, "a new key is a new payment");
        database.judge_books(2, 0);
    }
}

#[test]
fn a_refund_whose_answer_was_swept_is_refused_and_not_booked_again() {
    for database in Database::all() {
        let service = Service::start(&database);
        let [one, other] = ["order-1", "order-2"].map(|key| service.pay(key, 4_200));
        assert_eq!(service.refund(one.id(), "refund-1", 4_200).status, 201);
        database.sweep();
        // Of the same payment, of another one, and with another amount.
        for (payment, amount) in [(&one, 4_200), (&other, 4_200), (&other, 2_000)] {
            let late = service.refund(payment.id(), "refund-1", amount);
            assert_eq!((late.status, late.body["code"].as_str()), (409, Some("ALREADY_BOOKED")), "{late:?}");
            database.judge_books(2, 1);
        }
        assert_eq!(service.refund(other.id(), "refund-2", 4_200).status, 201, "it is all still there");
        database.judge_books(2, 2);
    }
}
