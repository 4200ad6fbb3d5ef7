//! `semel relay` from a file to a webhook receiver on loopback: delivery, logs and metrics, shutdown.
#![cfg(feature = "webhook")]

use crate::receiver::Receiver;
use crate::redis::Redis;
use crate::relay_world::{Outbox, Relay};
use crate::semel::{command, ran, semel};

const CONFIRMED: &str = "semel_relay_events_total{outcome=\"confirmed\"}";

#[test]
fn what_is_appended_arrives_signed_and_in_order() {
    let (outbox, receiver) = (Outbox::new(), Receiver::start());
    for n in 0..20 {
        outbox.append("payments", "account-7", &format!("{{\"n\":{n}}}"));
    }
    let relay = Relay::to_webhook(&outbox, &receiver.url(), &["--cloudevents", "/shop"]);
    let came = receiver.wait_for(20);
    let bodies: Vec<&str> = came.iter().map(|request| request.body.as_str()).collect();
    assert_eq!(bodies, (0..20).map(|n| format!("{{\"n\":{n}}}")).collect::<Vec<_>>());
    assert!(came[0].header("webhook-signature").starts_with("v1,"), "{:?}", came[0]);
    assert_eq!(came[0].header("ce-source"), "/shop");
    outbox.wait_for_states(&["published"; 20]);
    let first = outbox.semel(&["ls", "--oldest-first", "--limit", "1", "--json"]).json();
    assert_eq!(came[0].header("webhook-id"), first["events"][0]["id"]);
    let ended = relay.stop();
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stderr.iter().any(|line| line.contains("confirmed=20")), "{:?}", ended.stderr);
}

#[test]
fn figures_are_there_and_move() {
    let (outbox, receiver) = (Outbox::new(), Receiver::start());
    let relay = Relay::to_webhook(&outbox, &receiver.url(), &[]);
    assert_eq!(relay.get("/healthz"), (200, "ok\n".into()));
    assert_eq!(relay.wait_for_ready(200), "ready\n");
    assert_eq!(relay.metric(CONFIRMED), Some(0.0));
    outbox.append("payments", "a", "1");
    outbox.append("payments", "b", "2");
    relay.wait_for_metric(CONFIRMED, |confirmed| confirmed == 2.0);
    relay.wait_for_metric("semel_relay_lanes", |partitions| partitions == 1.0);
    relay.wait_for_metric("semel_relay_owner_epoch", |epoch| epoch >= 1.0);
    relay.wait_for_metric("semel_relay_last_success_timestamp_seconds", |at| at > 1.7e9);
    relay.wait_for_metric("semel_relay_unpublished_events", |events| events == 0.0);
    assert!(relay.metric("semel_relay_publish_seconds_count").unwrap() >= 1.0);
    assert_eq!(relay.metric("semel_relay_batch_events_sum"), Some(2.0));
    let (status, text) = relay.get("/metrics");
    assert_eq!((status, text.matches("# EOF").count()), (200, 1));
    assert!(!text.contains("semel_relay_slot_lag_bytes"), "no slot was asked for: {text}");
    assert_eq!(relay.get("/nowhere"), (404, "/healthz, /readyz, /metrics\n".into()));
    assert!(relay.stop().status.success());
}

#[test]
fn a_broker_that_is_away_makes_it_not_ready_until_it_is_back() {
    let redis = Redis::start();
    let outbox = Outbox::new();
    let to = format!("{}?timeout=200ms", redis.url());
    let relay = Relay::start(&outbox.url(), &to, &["--ready-within", "1s"]);
    outbox.append("payments", "a", "1");
    relay.wait_for_metric(CONFIRMED, |confirmed| confirmed == 1.0);
    assert_eq!(relay.wait_for_ready(200), "ready\n");
    let port = redis.stop();
    // Too many keys fail at once for a poison message: nothing is parked.
    outbox.sql(
        "WITH RECURSIVE n(v) AS (SELECT 0 UNION ALL SELECT v + 1 FROM n WHERE v < 19) \
         INSERT INTO semel_outbox (topic, type, key, payload) SELECT 'payments', 'paid', 'k-' || v, CAST('2' AS BLOB) FROM n",
    );
    let why = relay.wait_for_ready(503);
    assert!(why.starts_with("the sink has") && why.contains(" s"), "{why}");
    relay.wait_for_metric("semel_relay_unpublished_events", |events| events == 20.0);
    relay.wait_for_metric("semel_relay_unpublished_oldest_seconds", |seconds| seconds > 0.5);
    relay.wait_for_metric("semel_relay_errors_total{side=\"sink\"}", |errors| errors > 0.0);
    let _again = Redis::start_at(port, &[]);
    assert_eq!(relay.wait_for_ready(200), "ready\n");
    relay.wait_for_metric(CONFIRMED, |confirmed| confirmed == 21.0);
    assert_eq!(relay.metric("semel_relay_events_total{outcome=\"parked\"}"), Some(0.0));
    assert!(relay.stop().status.success());
}

#[test]
fn a_relay_on_other_tables_stops_and_a_person_decides() {
    let (outbox, receiver) = (Outbox::new(), Receiver::start());
    outbox.append("payments", "a", "1");
    let relay = Relay::to_webhook(&outbox, &receiver.url(), &[]);
    receiver.wait_for(1);
    outbox.wait_for_states(&["published"]);
    assert!(relay.stop().status.success());

    outbox.sql("UPDATE semel_outbox_meta SET lineage = 'another'");
    let to = receiver.url();
    let hook = ["--webhook-secret", "env:SEMEL_TEST_HOOK", "--webhook-allow-private"];
    let run = |more: &[&str]| {
        let base = ["relay", "--from", &outbox.url(), "--to", &to];
        let mut command = command(&[&base[..], &hook, more].concat());
        command.env("SEMEL_TEST_HOOK", crate::relay_world::SECRET);
        ran(command)
    };
    let stopped = run(&[]);
    assert_eq!(stopped.code, 1, "{stopped:?}");
    assert!(stopped.stderr.contains("semel outbox rebase"), "{stopped:?}");
    let checked = run(&["--check", "--json"]);
    assert_eq!(checked.code, 2, "{checked:?}");
    let report: serde_json::Value = serde_json::from_str(&checked.stdout).unwrap();
    assert_eq!((&report["holds"], &report["checks"][0]["ok"]), (&false.into(), &false.into()));

    let refused = outbox.semel(&["rebase", "--from-now"]).failed(1);
    assert!(refused.contains("--yes"), "{refused}");
    outbox.semel(&["rebase", "--everything"]).out();
    let relay = Relay::to_webhook(&outbox, &receiver.url(), &[]);
    assert_eq!(receiver.bodies(2), ["1", "1"], "everything is published again");
    outbox.wait_for_states(&["published"]);
    assert!(relay.stop().status.success());

    outbox.append("payments", "a", "given up");
    outbox.semel(&["rebase", "--from-now", "--yes"]).out();
    assert_eq!(outbox.states(), ["published", "published"]);
    outbox.append("payments", "a", "2");
    let relay = Relay::to_webhook(&outbox, &receiver.url(), &[]);
    assert_eq!(receiver.bodies(3)[2], "2");
    assert!(relay.stop().status.success());
}

#[test]
fn check_says_what_is_promised_and_exits_by_whether_it_is_kept() {
    let outbox = Outbox::new();
    let forgets = Redis::start();
    let keeps = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let check = |from: &str, to: &str, more: &[&str]| {
        semel(&[&["relay", "--from", from, "--to", to, "--check"], more].concat())
    };
    let kept = check(&outbox.url(), &keeps.url(), &["--json"]).json();
    assert_eq!((&kept["holds"], &kept["delivery"]), (&true.into(), &"deduplicated".into()));
    assert!(kept["guarantee"].as_str().unwrap().starts_with("Redis Streams: every event at least once"));
    let text = check(&outbox.url(), &keeps.url(), &["--poison", "event"]).out();
    assert!(text.contains("\nRedis Streams: every event at least once"), "{text}");
    assert!(text.contains("note    --poison event"), "{text}");

    let broken = check(&outbox.url(), &forgets.url(), &[]);
    assert_eq!(broken.code, 2, "{broken:?}");
    assert!(broken.stdout.contains("BROKEN") && broken.stderr.contains("appendonly yes"), "{broken:?}");
    let away = check(&outbox.url(), "redis://127.0.0.1:1?timeout=1s", &[]);
    assert_eq!(away.code, 1, "{away:?}");
    assert!(away.stderr.contains("could not be reached"), "{away:?}");

    let empty = crate::world::World::empty();
    rusqlite::Connection::open(empty.path()).unwrap().execute_batch("CREATE TABLE t (a)").unwrap();
    let none = check(&empty.url(), &keeps.url(), &[]);
    assert_eq!(none.code, 2, "{none:?}");
    assert!(none.stderr.contains("semel migrate --outbox"), "{none:?}");
    assert_eq!(outbox.states().len(), 0, "looking publishes nothing");
}

#[test]
fn what_cannot_work_is_said_before_anybody_is_connected_to() {
    let outbox = Outbox::new();
    let url = outbox.url();
    for (args, says) in [
        (&["--to", "kafka"][..], "is not a URL; use kafka://"),
        (&["--to", "pulsar://h"], "\"pulsar\" is not a supported broker; use kafka://"),
        (&["--to", "redis://h?prefx=a"], "has no option \"prefx\"; it has prefix, entries_max"),
        (&["--to", "redis://h?entries_max=many"], "entries_max= in the URL: \"many\" is not a number"),
        (&["--to", "redis://h?timeout=5"], "timeout= in the URL: \"5\" is not a duration"),
        (&["--to", "redis://h", "--webhook-secret", "env:X"], "--webhook-… is for http://"),
        (&["--to", "redis://h", "--exactly-once", "r"], "Redis Streams cannot; use kafka://"),
        (&["--to", "redis://h", "--mode", "cdc"], "reads PostgreSQL's log"),
        (&["--to", "redis://h", "--slot", "s"], "--slot is for --mode cdc"),
        (&["--to", "amqps://h"], "terminate TLS outside"),
        (&["--to", "http://h/in"], "--webhook-secret file:PATH or env:NAME"),
        (
            &["--to", "http://h/in", "--webhook-secret", "whsec_abc"],
            "give where the secret is stored, not the secret",
        ),
        (&["--to", "redis://h", "--admin", "0.0.0.0:1"], "--admin-insecure"),
        (&["--to", "redis://h", "--prune", "5"], "is not a duration"),
        #[cfg(feature = "kafka")]
        (&["--to", "kafka://h?compression=zip"], "use none, lz4, snappy"),
        #[cfg(feature = "kafka")]
        (&["--to", "kafka://h?acks=0"], "has no option \"acks\""),
        #[cfg(feature = "kafka")]
        (&["--to", "kafka://h?enable.idempotence=false"], "enable.idempotence is not to be set"),
        #[cfg(feature = "kafka")]
        (&["--to", "kafka://h?sasl.password=x"], "--kafka-config file:PATH"),
    ] {
        let line = semel(&[&["relay", "--from", &url], args].concat()).failed(2);
        assert!(line.contains(says), "{args:?}: {line}");
        assert!(!line.contains("whsec_abc"), "{line}");
    }
    for (from, says) in [
        ("app.db", "is not a database URL; use sqlite:PATH"),
        ("redis://h", "no outbox is known for \"redis\""),
        ("sqlite:/no/such/file.db", "cannot be opened"),
    ] {
        let ran = semel(&["relay", "--from", from, "--to", "redis://127.0.0.1:1"]);
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.stderr.contains(says), "{ran:?}");
    }
}
