//! The consumer as a process: a duplicate is notified of once, also over a restart, and an unreadable message is
//! kept.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use payments::events::PAYMENTS;
use semel::outbox::Event;
use semel::sink::kafka::KafkaSink;
use semel::sink::{Published, Sink};
use testkit::child::Child;
use testkit::services::{Service as Server, require};

use crate::database::Database;
use crate::service::PATIENCE;

fn start(kafka: &str, database: &Database, group: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
    command.args(["notify", "--from", &format!("kafka://{kafka}"), "--store", &database.url()]);
    command.args(["--group", group, "--member", "one"]);
    let mut child = Child::spawn(command, None).unwrap();
    let line = child.next_line(PATIENCE).unwrap();
    assert!(line.starts_with("notifying"), "{line}");
    child
}

/// SIGTERM: it ends in order and prints what it did.
fn stop(mut child: Child) {
    child.terminate().unwrap();
    let ended = child.wait(PATIENCE).unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stdout.last().unwrap().starts_with("stopped after"), "{ended:?}");
}

fn publish(kafka: &str, events: &[Arc<Event>]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut sink = KafkaSink::options(kafka).open().unwrap();
    let (mut events, until) = (events.to_vec(), Instant::now() + PATIENCE);
    while !events.is_empty() {
        // The first of them may make the topic, for which a busy broker may take longer than the sink waits.
        let answers = runtime.block_on(sink.publish(&events));
        assert!(Instant::now() < until, "{answers:?}");
        let mut answers = answers.iter();
        events.retain(|_| answers.next() != Some(&Published::Confirmed));
    }
}

fn wait_for(database: &Database, query: &str, wanted: i64) {
    let until = Instant::now() + PATIENCE;
    while database.number(query) < wanted {
        assert!(Instant::now() < until, "{} of {wanted}: {query}", database.number(query));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_comes_twice_is_notified_of_once_and_what_cannot_be_read_is_kept() {
    let (Some(kafka), Some(database)) = (require(Server::Kafka), Database::postgres()) else { return };
    // The topic is shared.
    let merchant = format!("merchant-{:016x}", fastrand::u64(..));
    let event = |n: u32, refund: &str| {
        let payload = format!(r#"{{"payment": "pay_{n}", {refund}"merchant": "{merchant}", "amount": {n}}}"#);
        let kind = if refund.is_empty() { "payment.completed" } else { "payment.refunded" };
        Arc::new(Event::new(PAYMENTS, kind, payload).unwrap().key(&merchant).unwrap())
    };
    let unreadable = Event::new(PAYMENTS, "payment.completed", merchant.clone()).unwrap().key(&merchant);
    let [one, two, back] = [event(1, ""), event(2, ""), event(1, r#""refund": "ref_1", "#)];
    let consumer = start(kafka.url(), &database, &merchant);
    let sent = [&one, &Arc::new(unreadable.unwrap()), &two, &one, &back].map(Arc::clone);
    publish(kafka.url(), &sent);
    let rows = format!("SELECT count(*) FROM notifications WHERE merchant = '{merchant}'");
    wait_for(&database, &rows, 3);
    let kept = format!("SELECT count(*) FROM unreadable WHERE convert_from(payload, 'UTF8') = '{merchant}'");
    wait_for(&database, &kept, 1);
    stop(consumer);

    let consumer = start(kafka.url(), &database, &merchant);
    let last = event(3, "");
    publish(kafka.url(), &[&two, &back, &one, &last].map(Arc::clone));
    // The last of its key: what came before it has been handled, too.
    wait_for(&database, &rows, 4);
    stop(consumer);
    let different = rows.replace("count(*)", "count(DISTINCT (event, kind, payment, refund))");
    assert_eq!((database.number(&rows), database.number(&different)), (4, 4));
    let refund = format!("{rows} AND refund = 'ref_1' AND payment = 'pay_1' AND kind = 'payment.refunded'");
    assert_eq!((database.number(&refund), database.number(&kept)), (1, 1));
}
