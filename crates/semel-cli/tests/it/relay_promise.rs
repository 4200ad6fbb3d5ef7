//! A broker that cannot keep the guarantee is reported by `--check`, and by a relay at its start.
#![cfg(all(feature = "redis", feature = "webhook"))]

use crate::receiver::Receiver;
use crate::redis::Redis;
use crate::relay_world::{Outbox, Relay, SECRET};
use crate::semel::{command, ran, semel};

const BROKEN: &str = "the sink's settings break its guarantee; change the setting named in `why`";
const CONFIRMED: &str = "semel_relay_events_total{outcome=\"confirmed\"}";

/// The text of `--check` for the violation.
fn violations(outbox: &Outbox, to: &str) -> String {
    let checked = semel(&["relay", "--from", &outbox.url(), "--to", to, "--check"]);
    assert_eq!(checked.code, 2, "{checked:?}");
    let why = checked.stdout.lines().find_map(|line| line.strip_prefix("BROKEN  promise: "));
    why.unwrap().to_owned()
}

#[test]
fn a_relay_says_at_its_start_what_its_broker_does_not_keep() {
    let (outbox, forgets) = (Outbox::new(), Redis::start());
    let why = violations(&outbox, &forgets.url());
    let mut relay = Relay::start(&outbox.url(), &forgets.url(), &[]);
    let said = relay.wait_for_said(BROKEN);
    assert!(said.contains(" ERROR ") && said.contains(&why), "{said}");
    // Logged once, before anything is published; the relay publishes all the same.
    outbox.append("payments", "a", "1");
    relay.wait_for_metric(CONFIRMED, |confirmed| confirmed == 1.0);
    outbox.append("payments", "a", "2");
    relay.wait_for_metric(CONFIRMED, |confirmed| confirmed == 2.0);
    let ended = relay.stop();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(ended.stderr.iter().filter(|line| line.contains(BROKEN)).count(), 1, "{ended:?}");
}

#[test]
fn nothing_is_said_of_a_broker_that_keeps_everything() {
    let outbox = Outbox::new();
    let keeps = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    outbox.append("payments", "a", "1");
    let relay = Relay::start(&outbox.url(), &keeps.url(), &[]);
    // The sink is probed before anything is published.
    relay.wait_for_metric(CONFIRMED, |confirmed| confirmed == 1.0);
    let ended = relay.stop();
    let trouble = |line: &&String| line.contains(" ERROR ") || line.contains(" WARN ");
    assert_eq!(ended.stderr.iter().find(trouble), None);
}

#[test]
fn a_broker_that_is_away_at_the_start_is_asked_when_it_is_back() {
    let outbox = Outbox::new();
    let port = Redis::start().stop();
    let to = format!("redis://127.0.0.1:{port}?timeout=200ms");
    outbox.append("payments", "a", "1");
    let mut relay = Relay::start(&outbox.url(), &to, &[]);
    relay.wait_for_said("could not verify the sink's configuration");
    relay.wait_for_metric("semel_relay_errors_total{side=\"sink\"}", |errors| errors > 0.0);
    let back = Redis::start_at(port, &[]);
    relay.wait_for_metric(CONFIRMED, |confirmed| confirmed == 1.0);
    let said = relay.wait_for_said(BROKEN);
    assert!(said.contains(&violations(&outbox, &back.url())), "{said}");
    assert!(relay.stop().status.success());
}

#[test]
fn an_idle_relay_asks_again_by_itself() {
    let outbox = Outbox::new();
    let port = Redis::start().stop();
    let mut relay = Relay::start(&outbox.url(), &format!("redis://127.0.0.1:{port}?timeout=200ms"), &[]);
    relay.wait_for_said("could not verify the sink's configuration");
    let _back = Redis::start_at(port, &[]);
    relay.wait_for_said(BROKEN);
    assert!(relay.stop().status.success());
}

#[test]
fn a_webhook_to_where_nothing_is_sent_is_broken_and_one_that_is_away_unknown() {
    let (outbox, receiver) = (Outbox::new(), Receiver::start());
    let check = |to: &str, more: &[&str]| {
        let hook = ["--webhook-secret", "env:SEMEL_TEST_HOOK", "--check"];
        let mut command =
            command(&[&["relay", "--from", &outbox.url(), "--to", to], &hook[..], more].concat());
        command.env("SEMEL_TEST_HOOK", SECRET);
        ran(command)
    };
    let private = check(&receiver.url(), &[]);
    assert_eq!(private.code, 2, "{private:?}");
    assert!(private.stderr.contains("nothing is sent to http://127.0.0.1"), "{private:?}");
    let allowed = check(&receiver.url(), &["--webhook-allow-private"]);
    assert_eq!(allowed.code, 0, "{allowed:?}");
    let away = check("http://127.0.0.1:1/in", &["--webhook-allow-private"]);
    assert_eq!(away.code, 1, "{away:?}");
    assert_eq!(receiver.bodies(0).len(), 0, "looking sends nothing");
}
