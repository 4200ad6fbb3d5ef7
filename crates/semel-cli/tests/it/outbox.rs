//! `semel outbox`: listings, and the effect of decisions.
#![cfg(feature = "webhook")]

use crate::receiver::Receiver;
use crate::relay_world::{Outbox, Relay, text};
use crate::semel::semel;

/// An outbox with one event of `a` that the receiver refuses, one behind it, and one of `b`.
fn with_poison() -> (Outbox, Receiver, Relay) {
    let (outbox, receiver) = (Outbox::new(), Receiver::start());
    receiver.answers(|request| if request.body == "poison" { 422 } else { 204 });
    outbox.append("payments", "a", "poison");
    outbox.append("payments", "a", "behind");
    outbox.append("payments", "b", "other");
    let relay = Relay::to_webhook(&outbox, &receiver.url(), &[]);
    assert_eq!(receiver.bodies(1), ["other"]);
    outbox.wait_for_states(&["parked", "held", "published"]);
    (outbox, receiver, relay)
}

#[test]
fn a_refused_event_parks_its_key_and_retry_sends_it_in_order() {
    let (outbox, receiver, relay) = with_poison();
    let parked = outbox.parked();
    let seen: Vec<_> = parked.iter().map(|event| (text(&event["state"]), text(&event["payload"]))).collect();
    assert_eq!(seen, [("parked".into(), "poison".into()), ("held".into(), "behind".into())]);
    assert!(text(&parked[0]["error"]).contains("422"), "{parked:?}");
    let table = outbox.semel(&["parked"]).out();
    assert!(table.starts_with("ID") && table.lines().count() == 3, "{table}");

    let shown = outbox.semel(&["show", &text(&parked[0]["id"])]).out();
    assert!(shown.contains("semel outbox retry --key a\n") && shown.contains("    poison\n"), "{shown}");
    let held = outbox.semel(&["show", &text(&parked[1]["id"]), "--json"]).json();
    assert_eq!(held["next"][0], "semel outbox parked --key a");

    relay.wait_for_metric("semel_relay_events_total{outcome=\"parked\"}", |parked| parked == 1.0);
    relay.wait_for_metric("semel_relay_events_total{outcome=\"held\"}", |held| held == 1.0);
    relay.wait_for_metric("semel_relay_parked_events", |parked| parked == 2.0);

    let line = outbox.semel(&["retry", "--key", "b"]).failed(1);
    assert!(line.contains("nothing is parked under the key \"b\""), "{line}");
    receiver.answers(|_| 204);
    let said = outbox.semel(&["retry", "--key", "a"]).out();
    assert_eq!(said, "1 key will be retried at the relay's next poll\n");
    assert_eq!(receiver.bodies(3), ["other", "poison", "behind"]);
    outbox.wait_for_states(&["published"; 3]);
    assert_eq!(outbox.semel(&["retry", "--all"]).out(), "nothing is parked\n");
    assert!(relay.stop().status.success());
}

#[test]
fn a_skipped_event_is_given_up_only_when_that_is_said_twice() {
    let (outbox, receiver, relay) = with_poison();
    let id = text(&outbox.parked()[0]["id"]);
    let line = outbox.semel(&["skip", &id]).failed(1);
    assert!(line.contains("nothing was changed") && line.contains("--yes"), "{line}");
    assert_eq!(outbox.parked().len(), 2);
    outbox.semel(&["skip", &id, "--yes"]).out();
    assert_eq!(receiver.bodies(2), ["other", "behind"]);
    let line = outbox.semel(&["skip", &id, "--yes"]).failed(1);
    assert!(line.contains("is not parked"), "{line}");
    assert!(relay.stop().status.success());
}

#[test]
fn listings_are_bounded_filtered_and_in_order() {
    let outbox = Outbox::new();
    for n in 0..5 {
        outbox.append(["payments", "audit"][n % 2], &format!("k-{n}"), "{}");
    }
    let keys = |args: &[&str]| -> Vec<String> {
        let listed = outbox.semel(&[&["ls", "--json"], args].concat()).json();
        listed["events"].as_array().unwrap().iter().map(|event| text(&event["key"])).collect()
    };
    assert_eq!(keys(&[]), ["k-4", "k-3", "k-2", "k-1", "k-0"]);
    assert_eq!(keys(&["--limit", "2"]), ["k-4", "k-3"]);
    assert_eq!(keys(&["--oldest-first", "--limit", "2"]), ["k-0", "k-1"]);
    assert_eq!(keys(&["--topic", "audit"]), ["k-3", "k-1"]);
    assert_eq!(keys(&["--key", "k-2"]), ["k-2"]);
    outbox.sql("UPDATE semel_outbox_cursor SET after_seq = 2, until_seq = 4");
    assert_eq!(outbox.states(), ["published", "published", "sending", "sending", "waiting"]);
    assert_eq!(keys(&["--unpublished", "--oldest-first"]), ["k-2", "k-3", "k-4"]);
    let short = outbox.semel(&["ls", "--limit", "2"]);
    assert!(short.code == 0 && short.stderr.contains("there may be more"), "{short:?}");
}

#[test]
fn what_an_event_says_does_not_reach_the_terminal_as_it_is() {
    let outbox = Outbox::new();
    outbox.append("payments", "k\u{1b}[2J", "plain\nlines");
    outbox.append("payments", "k", "\u{1b}]0;title\u{7}");
    let table = outbox.semel(&["ls"]).out();
    assert!(!table.contains('\u{1b}') && table.contains("k\\u{1b}[2J"), "{table:?}");
    let listed = outbox.semel(&["ls", "--oldest-first", "--json"]).json();
    let show = |n: usize, more: &[&str]| {
        outbox.semel(&[&["show", &text(&listed["events"][n]["id"])], more].concat()).out()
    };
    let first = show(0, &[]);
    assert!(first.contains("    plain\n    lines\n") && !first.contains('\u{1b}'), "{first:?}");
    let second = show(1, &[]);
    assert!(second.contains("--payload writes it") && !second.contains('\u{1b}'), "{second:?}");
    assert_eq!(show(1, &["--payload"]), "\u{1b}]0;title\u{7}");
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let outbox = Outbox::new();
    let line = semel(&["outbox", "ls"]).failed(2);
    assert!(line.contains("--from") && line.contains("SEMEL_FROM"), "{line}");
    let line = outbox.semel(&["show", "018f3c1e-7b7a-7c3e-9d2f-0d5f4c1a2b3c"]).failed(1);
    assert!(line.contains("newest 100,000"), "{line}");
    assert!(outbox.semel(&["show", "7"]).failed(2).contains("--help"));
    assert!(outbox.semel(&["retry"]).failed(2).contains("--all"));
    assert!(outbox.semel(&["rebase"]).failed(2).contains("--everything"));
    let line = semel(&["outbox", "ls", "--from", "sqlite:/no/such/file.db"]).failed(2);
    assert!(line.contains("cannot be opened"), "{line}");
}
