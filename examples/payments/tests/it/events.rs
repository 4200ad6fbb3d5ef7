//! The events of a payment: with it, once, and under the trace of the request that made it.

use crate::client;
use crate::database::Database;
use crate::service::Service;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const BODY: &str = r#"{"amount": 4200, "customer": "ana"}"#;

#[test]
fn a_replay_and_a_refusal_tell_nothing_more() {
    for database in Database::all() {
        let service = Service::start(&database);
        let payment = service.pay("order-1", 4_200);
        assert_eq!(service.refund(payment.id(), "refund-1", 3_000).status, 201);
        assert_eq!(database.events(), 4);
        assert!(service.pay("order-1", 4_200).replayed);
        assert!(service.refund(payment.id(), "refund-1", 3_000).replayed);
        assert_eq!(service.pay("order-1", 9_900).status, 409, "another request under the key");
        assert_eq!(service.pay("order-2", -1).status, 400);
        assert_eq!(service.refund(payment.id(), "refund-2", 3_000).status, 422, "too much");
        assert_eq!(database.events(), 4);
        database.judge(1, 1);
    }
}

#[test]
fn events_have_the_trace_of_the_request_and_keep_to_the_payment() {
    for database in Database::all() {
        let service = Service::start(&database);
        let pay = |key: &str, trace: &str| {
            let headers = format!("idempotency-key: {key}\r\ntraceparent: {trace}\r\n");
            client::send_with(service.address, "POST", "/api/v1/payments", &headers, BODY).unwrap()
        };
        let payment = pay("order-1", TRACE);
        // The retry is part of another trace; what happened is not.
        assert!(pay("order-1", &TRACE.replace('4', "5")).replayed);
        let traced = format!(
            "SELECT count(*) FROM semel_outbox WHERE trace_parent = '{TRACE}' AND key = '{}' AND topic IN \
             ('payments', 'audit')",
            payment.id()
        );
        assert_eq!((database.number(&traced), database.events()), (2, 2));
        // Not one that can be read: no reason to refuse a payment.
        assert_eq!(pay("order-2", "nonsense").status, 201);
        let without = "SELECT count(*) FROM semel_outbox WHERE trace_parent IS NULL";
        assert_eq!((database.number(without), database.events()), (2, 4));
        database.judge(2, 0);
    }
}
