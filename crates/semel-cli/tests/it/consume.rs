//! `semel consume`: its arguments, and the whole path from a real broker to an endpoint with faults.

use crate::semel::semel;

#[test]
fn what_cannot_work_is_said_and_nothing_is_begun() {
    let to = "http://127.0.0.1:1/in";
    for (args, says) in [
        (&["--from", "kafka://h:1/t", "--to", to][..], "needs a group"),
        (&["--from", "kafka://h:1?group=g", "--to", to], "name the topics"),
        (&["--from", "kafka://u:p@h:1/t?group=g", "--to", to], "give passwords with --kafka-config"),
        (&["--from", "kafka://h:1/t?group=g&sesion=1s", "--to", to], "has no option"),
        (&["--from", "kafka://h:1/t?group=g&enable.auto.commit=true", "--to", to], "cannot be set"),
        (&["--from", "mqtt://h:1/t", "--to", to], "is not a supported broker"),
        (&["--from", "kafka://h:1/t?group=g", "--to", "ftp://h/in"], "is not the URL of an endpoint"),
        (&["--from", "kafka://h:1/t?group=g", "--to", to, "--identify", "offset"], "use event, place"),
        (&["--from", "kafka://h:1/t?group=g", "--to", to, "--admin", "0.0.0.0:9"], "--admin-insecure"),
        (
            &["--from", "kafka://h:1/t?group=g", "--to", to, "--store", "memory:x"],
            "there is no store for the scheme",
        ),
        (&["--from", "kafka://h:1/t?group=g", "--to", to, "--store", "memory:", "--lease", "1ms"], "lease"),
        (
            &["--from", "kafka://h:1/t?group=g", "--to", to, "--store", "memory:", "--poison", "park"],
            "has none",
        ),
    ] {
        if cfg!(not(feature = "kafka")) && args[1].starts_with("kafka") {
            continue;
        }
        let ran = semel(&[&["consume"], args].concat());
        assert_eq!(ran.code, 2, "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(says), "{args:?}: {ran:?}");
    }
}

#[cfg(feature = "kafka")]
mod kafka {
    use std::collections::HashMap;
    use std::sync::Arc;

    use semel::inbox::dead_letter::{DeadLetterFilter, DeadLetterStore};
    use serde_json::Value;

    use crate::consume_world::{Does, Endpoint, Topic};
    use crate::semel::semel;
    use crate::world::block_on;

    const MESSAGES: usize = 1_000;
    const KEYS: usize = 25;

    /// Message `n` of `key`, as the endpoint saw it.
    fn by_key(requests: &[crate::receiver::Request]) -> HashMap<String, Vec<usize>> {
        let mut seen: HashMap<String, Vec<usize>> = HashMap::new();
        for request in requests {
            let n = request.body.parse().unwrap();
            seen.entry(request.header("semel-key").to_owned()).or_default().push(n);
        }
        seen
    }

    #[test]
    #[ignore = "prove: kills at random"]
    fn each_message_has_its_effect_once_over_kills_and_an_endpoint_that_fails() {
        let Some(topic) = Topic::new() else { return };
        let endpoint = Endpoint::start();
        let mut random = testkit::seed::rng();
        let mut events = Vec::new();
        for n in 0..MESSAGES {
            let event = topic.event(&format!("key-{}", n % KEYS), n / KEYS);
            events.push(Arc::clone(&event));
            // Published twice, after others of its key or right away.
            if n % 3 == 0 {
                let again =
                    if n % 2 == 0 { event } else { Arc::clone(&events[random.usize(..events.len())]) };
                events.push(again);
            }
        }
        topic.publish(&events);
        let mut chance = testkit::seed::rng_for(testkit::seed::seed(), 1);
        endpoint.does(move |_| match chance.u32(..100) {
            0..4 => Does::Say(503),
            4..6 => Does::Say(500),
            6..9 => Does::Cut,
            9..12 => Does::WorkAndCut,
            12 => Does::WorkAndHang,
            _ => Does::Work(200),
        });
        for round in 1..=4 {
            let consumer = topic.consume("one", &endpoint, &[]);
            endpoint.wait_for_effects(round * MESSAGES / 6 + random.usize(..MESSAGES / 12));
            if round == 2 {
                // The endpoint is down; nothing is lost.
                let failed = "semel_consumer_messages_total{outcome=\"failed\"}";
                endpoint.is_down(true);
                let before = consumer.metric(failed).unwrap();
                consumer.wait_for_metric(failed, |failed| failed > before + 50.0);
                endpoint.is_down(false);
            }
            consumer.kill();
        }
        let consumer = topic.consume("one", &endpoint, &[]);
        endpoint.wait_for_effects(MESSAGES);
        endpoint.does(|_| Does::Work(200));
        consumer.wait_for_metric("semel_consumer_held_messages", |held| held == 0.0);
        assert_eq!(consumer.wait_for_ready(200), "ready\n");
        let ended = consumer.stop();
        assert!(ended.status.success(), "{ended:?}");

        let (effects, calls) = (endpoint.effects(), endpoint.calls());
        for (key, seen) in by_key(&effects) {
            assert_eq!(seen, (0..MESSAGES / KEYS).collect::<Vec<_>>(), "{key}: each once, in its order");
        }
        assert_eq!(effects.len(), MESSAGES, "none is missing");
        let mut keys: HashMap<String, String> = HashMap::new();
        for call in &calls {
            let (id, key) = (call.header("semel-id").to_owned(), call.header("idempotency-key").to_owned());
            assert_eq!(*keys.entry(id).or_insert(key.clone()), key, "one message, one key");
        }
        assert_eq!(keys.len(), MESSAGES);
        assert!(calls.len() > MESSAGES, "some were sent again, or nothing was shown");

        // Another group gets everything again; answered messages are recorded under the consumer's name.
        let calls = calls.len();
        let consumer = topic.consume("two", &endpoint, &[]);
        let all = events.len();
        consumer.wait_for_metric("semel_consumer_messages_total{outcome=\"already\"}", |already| {
            already >= all as f64
        });
        assert!(consumer.stop().status.success());
        assert_eq!(endpoint.calls().len(), calls, "nothing is sent again");
    }

    #[test]
    fn a_request_says_which_message_it_is_and_a_refused_one_holds_its_key_only() {
        let Some(topic) = Topic::new() else { return };
        let endpoint = Endpoint::start();
        let [bad, behind, other] = [("a", 1), ("a", 2), ("b", 3)].map(|(key, n)| topic.event(key, n));
        let id = bad.id().to_string();
        endpoint.does(|request| if request.body == "1" { Does::Say(422) } else { Does::Work(201) });
        topic.publish(&[bad, behind, other]);
        let consumer = topic.consume("one", &endpoint, &["--poison", "stop"]);
        endpoint.wait_for_effects(1);
        consumer.wait_for_metric("semel_consumer_messages_total{outcome=\"failed\"}", |failed| failed >= 3.0);
        let bodies: Vec<_> = endpoint.effects().iter().map(|it| it.body.clone()).collect();
        assert_eq!(bodies, ["3"], "the one behind it waits, others do not");
        let call = endpoint.calls().into_iter().find(|it| it.body == "1").unwrap();
        let key = call.header("idempotency-key").to_owned();
        assert!(key.starts_with(&format!("\"{id}:")) && key.len() == 36 + 1 + 16 + 2, "{key}");
        for (name, value) in [
            ("semel-id", id.as_str()),
            ("semel-type", "payment.completed"),
            ("semel-key", "a"),
            ("semel-source", topic.name.as_str()),
            ("content-type", "application/json"),
            ("region", "eu"),
        ] {
            assert_eq!(call.header(name), value, "{name}");
        }
        let attempts: Vec<usize> = endpoint
            .calls()
            .iter()
            .filter(|it| it.body == "1")
            .map(|it| it.header("semel-attempt").parse().unwrap())
            .collect();
        assert_eq!(attempts, (1..=attempts.len()).collect::<Vec<_>>());
        // After the fix its key continues in order.
        endpoint.does(|_| Does::Work(201));
        endpoint.wait_for_effects(3);
        let ended = consumer.stop();
        assert!(ended.status.success() && ended.stderr.join("\n").contains("422"), "{ended:?}");
        let bodies: Vec<_> = endpoint.effects().iter().map(|it| it.body.clone()).collect();
        assert_eq!(bodies, ["3", "1", "2"]);
    }

    #[test]
    fn an_attempt_that_the_gateway_calls_in_progress_is_not_done() {
        let Some(topic) = Topic::new() else { return };
        let endpoint = Endpoint::start();
        let (_gateway, to) = topic.gateway(&endpoint);
        endpoint.does(|_| Does::SayLater(500));
        topic.publish(&[topic.event("a", 1)]);
        let consumer = topic.consume_to("one", &to, &[]);
        // The first attempt is in flight for longer than the consumer waits; the next one gets a 202.
        consumer.wait_for_metric("semel_consumer_messages_total{outcome=\"failed\"}", |failed| failed >= 3.0);
        assert_eq!(endpoint.calls().len(), 1, "the gateway keeps duplicates back");
        // Now the first one fails, and the consumer has to retry.
        endpoint.does(|_| Does::Work(200));
        endpoint.let_go();
        endpoint.wait_for_effects(1);
        consumer.wait_for_metric("semel_consumer_messages_total{outcome=\"done\"}", |done| done == 1.0);
        assert!(consumer.stop().status.success());
        assert_eq!((endpoint.calls().len(), endpoint.effects().len()), (2, 1));
    }

    #[test]
    fn a_refused_message_is_put_aside_and_comes_again_when_a_person_says_so() {
        let Some(topic) = Topic::new() else { return };
        let endpoint = Endpoint::start();
        endpoint.does(|request| if request.body == "1" { Does::Say(422) } else { Does::Work(200) });
        topic.publish(&[("a", 1), ("a", 2), ("b", 3)].map(|(key, n)| topic.event(key, n)));
        let consumer = topic.consume("one", &endpoint, &[]);
        endpoint.wait_for_effects(2);
        consumer.wait_for_metric("semel_consumer_messages_total{outcome=\"dead\"}", |dead| dead == 1.0);
        consumer.wait_for_metric("semel_consumer_held_messages", |held| held == 0.0);
        endpoint.does(|_| Does::Work(200));
        let tables = block_on(DeadLetterStore::open(&topic.store())).unwrap();
        let letters = block_on(tables.list(&DeadLetterFilter::default(), 10)).unwrap();
        assert_eq!(letters.len(), 1);
        assert!(block_on(tables.retry(&[letters[0].number])).unwrap().is_ok());
        endpoint.wait_for_effects(3);
        assert!(consumer.stop().status.success());
        let keys: HashMap<String, ()> =
            endpoint.calls().iter().map(|it| (it.header("idempotency-key").to_owned(), ())).collect();
        assert_eq!((keys.len(), endpoint.calls().len()), (3, 4), "the same key from the grave");
        assert!(block_on(tables.list(&DeadLetterFilter::default(), 10)).unwrap().is_empty());
    }

    #[test]
    fn what_is_in_doubt_at_an_opaque_endpoint_waits_for_a_person() {
        let Some(topic) = Topic::new() else { return };
        let endpoint = Endpoint::start();
        endpoint.does(|request| if request.body == "1" { Does::WorkAndCut } else { Does::Work(200) });
        topic.publish(&[("a", 1), ("a", 2), ("b", 3)].map(|(key, n)| topic.event(key, n)));
        let consumer = topic.consume("one", &endpoint, &["--effect", "opaque", "--poison", "stop"]);
        endpoint.wait_for_effects(2);
        consumer.wait_for_metric("semel_consumer_messages_total{outcome=\"failed\"}", |failed| failed >= 3.0);
        assert_eq!(endpoint.calls().iter().filter(|it| it.body == "1").count(), 1, "not sent again");
        let store = topic.store();
        let listed = semel(&["ls", "--state", "uncertain", "--store", &store, "--json"]).json();
        let id = listed["records"][0]["id"].as_str().unwrap().to_owned();
        assert_eq!(listed["records"].as_array().unwrap().len(), 1, "{listed}");
        let said = ["--applied", "--by", "ana", "--why", "it is in the books"];
        semel(&[&["resolve", &id, "--store", &store][..], &said].concat());
        endpoint.wait_for_effects(3);
        assert!(consumer.stop().status.success());
        assert_eq!(endpoint.calls().len(), 3, "each was sent once");
    }

    #[test]
    fn what_is_promised_is_checked() {
        let Some(topic) = Topic::new() else { return };
        let endpoint = Endpoint::start();
        topic.publish(&[topic.event("a", 1)]);
        let (from, to, store) = (topic.from("one"), endpoint.url(), topic.store());
        let check = |more: &[&str]| {
            let base = ["consume", "--from", &from, "--to", &to, "--check", "--json"];
            let ran = semel(&[&base[..], more].concat());
            let report: Value = serde_json::from_str(&ran.stdout).unwrap();
            (ran.code, report, ran.stderr)
        };
        let (code, report, _) = check(&["--store", &store]);
        assert_eq!((code, &report["holds"]), (0, &true.into()), "{report}");
        assert_eq!(report["name"], format!("{}_one", topic.name), "the group's");
        assert!(report["guarantee"].as_str().unwrap().contains("same Idempotency-Key"), "{report}");
        let (code, report, said) = check(&["--store", "memory:"]);
        assert_eq!((code, &report["holds"]), (2, &false.into()), "{said}");
        assert!(said.contains("memory: loses its records"), "{said}");
        let (code, _, said) = check(&["--store", &store, "--window", "1h"]);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("make --window longer"), "{said}");
        endpoint.is_down(true);
        let (code, _, said) = check(&["--store", &store]);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("could not be reached"), "{said}");
        assert!(endpoint.calls().is_empty(), "nothing is sent by a check");
    }
}
