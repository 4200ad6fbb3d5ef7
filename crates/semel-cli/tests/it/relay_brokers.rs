//! `semel relay` to RabbitMQ and to NATS: the result of `--check`, and the messages as the brokers' clients see them.

#[cfg(feature = "rabbitmq")]
mod rabbitmq {
    use lapin::options::{
        BasicGetOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions,
        QueueDeclareOptions, QueueDeleteOptions,
    };
    use lapin::types::{AMQPValue, FieldTable};
    use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
    use testkit::services::{Service, require};

    use crate::relay_world::{Outbox, Relay};
    use crate::semel::semel;
    use crate::world::block_on;

    async fn channel(url: &str) -> (Connection, Channel) {
        let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        (connection, channel)
    }

    /// An exchange, and a quorum queue bound to `topic`.
    async fn declare(url: &str, exchange: &str, topic: &str) {
        let (_connection, channel) = channel(url).await;
        let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let none = FieldTable::default;
        channel.exchange_declare(exchange.into(), ExchangeKind::Topic, durable, none()).await.unwrap();
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        let mut quorum = none();
        quorum.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        channel.queue_declare(topic.into(), durable, quorum).await.unwrap();
        let bind = QueueBindOptions::default();
        channel.queue_bind(topic.into(), exchange.into(), topic.into(), bind, none()).await.unwrap();
    }

    /// Drains the queue: message ids and bodies.
    async fn drain(url: &str, queue: &str) -> Vec<(String, String)> {
        let (_connection, channel) = channel(url).await;
        let mut all = Vec::new();
        while let Some(got) = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.unwrap()
        {
            let id = got.delivery.properties.message_id().as_ref().unwrap().to_string();
            all.push((id, String::from_utf8(got.delivery.data).unwrap()));
        }
        all
    }

    #[test]
    fn an_exchange_that_is_missing_is_said_and_what_is_relayed_to_it_arrives() {
        let Some(broker) = require(Service::Rabbitmq) else { return };
        let outbox = Outbox::new();
        let name = format!("cli_relay_{}", std::process::id());
        let to = format!("{}?exchange={name}", broker.url());
        let check = || semel(&["relay", "--from", &outbox.url(), "--to", &to, "--check"]);
        let missing = check();
        assert_eq!(missing.code, 2, "{missing:?}");
        assert!(missing.stderr.contains(&format!("the exchange {name:?} does not exist")), "{missing:?}");
        assert!(missing.stderr.contains("declare it, or name another"), "{missing:?}");

        let topic = format!("{name}.payments");
        block_on(declare(broker.url(), &name, &topic));
        let there = check().out();
        assert!(there.contains("\nRabbitMQ, publisher confirms: every event at least once"), "{there}");
        for n in 0..5 {
            outbox.append(&topic, "account-7", &format!("{{\"n\":{n}}}"));
        }
        let relay = Relay::start(&outbox.url(), &to, &[]);
        outbox.wait_for_states(&["published"; 5]);
        assert!(relay.stop().status.success());
        let came = block_on(drain(broker.url(), &topic));
        block_on(async {
            let (_connection, channel) = channel(broker.url()).await;
            channel.queue_delete(topic.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
            channel.exchange_delete(name.as_str().into(), ExchangeDeleteOptions::default()).await.unwrap();
        });
        let bodies: Vec<&str> = came.iter().map(|(_, body)| body.as_str()).collect();
        assert_eq!(bodies, (0..5).map(|n| format!("{{\"n\":{n}}}")).collect::<Vec<_>>());
        let listed = outbox.semel(&["ls", "--oldest-first", "--json"]).json();
        let ids: Vec<_> = came.iter().map(|(id, _)| id.as_str()).collect();
        let listed_ids: Vec<_> =
            listed["events"].as_array().unwrap().iter().map(|event| event["id"].as_str().unwrap()).collect();
        assert_eq!(ids, listed_ids);
    }
}

#[cfg(feature = "nats")]
mod nats {
    use async_nats::jetstream::stream::{Config, StorageType};
    use async_nats::jetstream::{self, Context};
    use testkit::services::{Service, require};

    use crate::relay_world::{Outbox, Relay};
    use crate::semel::semel;
    use crate::world::block_on;

    async fn context(url: &str) -> Context {
        jetstream::new(async_nats::connect(url).await.unwrap())
    }

    #[test]
    fn a_stream_that_forgets_or_confirms_nothing_is_said_and_what_is_relayed_to_a_good_one_arrives() {
        let Some(server) = require(Service::Nats) else { return };
        let outbox = Outbox::new();
        let name = format!("cli_relay_{}", std::process::id());
        let to = format!("{}?stream={name}", server.url());
        let check = || semel(&["relay", "--from", &outbox.url(), "--to", &to, "--check"]);
        let missing = check();
        assert_eq!(missing.code, 2, "{missing:?}");
        assert!(missing.stderr.contains(&format!("the stream {name:?} does not exist")), "{missing:?}");

        let good = Config { name: name.clone(), subjects: vec![name.clone()], ..Config::default() };
        for (bad, says) in [
            (Config { no_ack: true, ..good.clone() }, "confirms nothing (no_ack); let it acknowledge"),
            (Config { storage: StorageType::Memory, ..good.clone() }, "is kept in memory"),
        ] {
            block_on(async { context(server.url()).await.create_stream(bad).await.unwrap() });
            let checked = check();
            block_on(async { context(server.url()).await.delete_stream(&name).await.unwrap() });
            assert_eq!(checked.code, 2, "{checked:?}");
            assert!(checked.stderr.contains(says), "{checked:?}");
        }

        block_on(async { context(server.url()).await.create_stream(good).await.unwrap() });
        let there = check().out();
        assert!(there.contains("\nNATS JetStream: every event at least once"), "{there}");
        for n in 0..5 {
            outbox.append(&name, "account-7", &format!("{{\"n\":{n}}}"));
        }
        let relay = Relay::start(&outbox.url(), &to, &["--cloudevents", "/shop"]);
        outbox.wait_for_states(&["published"; 5]);
        assert!(relay.stop().status.success());
        let came = block_on(async {
            let context = context(server.url()).await;
            let mut stream = context.get_stream(&name).await.unwrap();
            let last = stream.info().await.unwrap().state.last_sequence;
            let mut all = Vec::new();
            for sequence in 1..=last {
                all.push(stream.get_raw_message(sequence).await.unwrap());
            }
            context.delete_stream(&name).await.unwrap();
            all
        });
        let bodies: Vec<String> =
            came.iter().map(|message| String::from_utf8(message.payload.to_vec()).unwrap()).collect();
        assert_eq!(bodies, (0..5).map(|n| format!("{{\"n\":{n}}}")).collect::<Vec<_>>());
        assert!(came.iter().all(|message| message.headers.get("ce-source").unwrap().as_str() == "/shop"));
        let listed = outbox.semel(&["ls", "--oldest-first", "--json"]).json();
        for (message, event) in came.iter().zip(listed["events"].as_array().unwrap()) {
            assert_eq!(event["id"], message.headers.get("semel-id").unwrap().as_str());
        }
    }
}
