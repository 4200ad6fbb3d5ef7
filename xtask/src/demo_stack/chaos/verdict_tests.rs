//! The judge, on worlds with one mistake each.

use super::*;
use crate::demo_stack::clients::Made;

/// Two payments, the first one refunded; all as it should be, and an event that came twice on the way.
fn world() -> (Asked, Seen) {
    let text = |text: &str| text.to_owned();
    let made = |n: u32, refund: Option<&str>| Made {
        key: format!("order-{n}"),
        payment: format!("pay_{n}"),
        refund: refund.map(text),
    };
    let about = |kind: &str, id: &str| (text(kind), text(id));
    let events = [
        about("payment.completed", "pay_1"),
        about("payment.recorded", "pay_1"),
        about("payment.completed", "pay_2"),
        about("payment.recorded", "pay_2"),
        about("payment.refunded", "ref_1"),
        about("refund.recorded", "ref_1"),
    ];
    let asked = Asked { made: vec![made(1, Some("ref_1")), made(2, None)], ..Asked::default() };
    let seen = Seen {
        payments: vec![(text("pay_1"), text("order-1")), (text("pay_2"), text("order-2"))],
        refunds: vec![(text("ref_1"), text("pay_1"))],
        outbox: events.iter().enumerate().map(|(n, about)| (format!("e{n}"), about.clone())).collect(),
        kafka: ["e0", "e1", "e2", "e3", "e4", "e5", "e4"].map(text).into(),
        notifications: vec![events[0].clone(), events[2].clone(), events[4].clone()],
    };
    (asked, seen)
}

fn wrong(change: impl FnOnce(&mut Asked, &mut Seen)) -> Vec<String> {
    let (mut asked, mut seen) = world();
    change(&mut asked, &mut seen);
    Verdict::judge(&asked, &seen).wrong().to_vec()
}

#[test]
fn what_is_right_holds_and_a_repetition_on_the_way_is_shown() {
    let (asked, seen) = world();
    let verdict = Verdict::judge(&asked, &seen);
    assert_eq!(verdict.wrong(), [] as [&str; 0]);
    let (table, json) = (verdict.table(&asked, &Turns::default()), verdict.json(&asked, &Turns::default()));
    assert!(table.contains("at least once") && table.contains("every payment was made once"), "{table}");
    assert!(json.starts_with('{') && json.contains("\"ok\":true"), "{json}");
}

#[test]
fn each_mistake_is_named_with_its_place() {
    let first = |wrong: Vec<String>| wrong.into_iter().next().unwrap_or_default();
    let lost = first(wrong(|_, seen| drop(seen.notifications.remove(0))));
    assert!(lost.starts_with("notifications: 1 lost") && lost.contains("pay_1"), "{lost}");
    let doubled = first(wrong(|_, seen| seen.notifications.push(seen.notifications[0].clone())));
    assert!(doubled.starts_with("notifications: 1 there more than once"), "{doubled}");
    let unsent = first(wrong(|_, seen| drop(seen.kafka.remove(0))));
    assert!(unsent.starts_with("events in Kafka: 1 lost"), "{unsent}");
    let foreign = first(wrong(|_, seen| seen.kafka.push("e9".to_owned())));
    assert!(foreign.starts_with("events in Kafka: 1 foreign"), "{foreign}");
    let unpublished = first(wrong(|_, seen| drop(seen.outbox.remove(5))));
    assert!(unpublished.starts_with("events in the outbox: 1 lost"), "{unpublished}");
    let unmade = wrong(|_, seen| seen.payments[1].1 = "order-7".to_owned());
    assert!(unmade.iter().any(|why| why.starts_with("payments: 1 lost")), "{unmade:?}");
    assert!(unmade.iter().any(|why| why.starts_with("payments: 1 foreign")), "{unmade:?}");
    let twice = wrong(|_, seen| seen.payments.push(("pay_3".to_owned(), "order-2".to_owned())));
    assert!(twice.iter().any(|why| why.starts_with("payments: 1 there more than once")), "{twice:?}");
    let other = wrong(|asked, _| asked.made[0].payment = "pay_8".to_owned());
    assert!(other.iter().any(|why| why.contains("was answered with pay_8")), "{other:?}");
}

#[test]
fn what_is_in_doubt_may_be_there_or_not() {
    let there = |asked: &mut Asked| {
        let made = asked.made.pop();
        asked.in_doubt.extend(made.map(|made| made.key));
    };
    assert_eq!(wrong(|asked, _| there(asked)), [] as [&str; 0]);
    let not_there = wrong(|asked, seen| {
        there(asked);
        seen.payments.pop();
        seen.outbox.drain(2..4);
        seen.kafka.drain(2..4);
        seen.notifications.remove(1);
    });
    assert_eq!(not_there, [] as [&str; 0]);
    let refund = wrong(|asked, _| {
        asked.made[0].refund = None;
        asked.refunds_in_doubt.push("pay_1".to_owned());
    });
    assert_eq!(refund, [] as [&str; 0]);
    // What no client asked for is not in doubt.
    assert!(!wrong(|asked, _| asked.made[0].refund = None).is_empty());
}
