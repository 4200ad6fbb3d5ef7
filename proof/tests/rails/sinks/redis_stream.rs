//! Redis Streams, read by a bare client.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use redis::streams::StreamRangeReply;
use redis::{AsyncCommands, FromRedisValue};
use semel::conformance::sink::{ReadMessage, SinkHarness};
use semel::sink::redis_stream::{PAYLOAD, RedisStreamSink};
use semel::sink::{Published, Sink};
use testkit::proxy::{Fault, Proxy};
use testkit::services::{Lease, Service, alone, require};

use crate::relay::sqlite::{connect as sqlite, file};
use crate::relay::world::batch;
use crate::sinks::{PATIENCE, confirmed, event, lose_an_answer, texts, unique};

/// With patience: asked for nothing else, a client gives up after half a second.
async fn connect(url: &str) -> redis::aio::MultiplexedConnection {
    let patient = Some(Duration::from_secs(30));
    let config =
        redis::AsyncConnectionConfig::new().set_connection_timeout(patient).set_response_timeout(patient);
    redis::Client::open(url).unwrap().get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

async fn read(url: &str, stream: &str) -> Vec<ReadMessage> {
    let reply: StreamRangeReply = connect(url).await.xrange_all(stream).await.unwrap();
    let entries = reply.ids.into_iter().map(|entry| {
        let mut payload = Vec::new();
        let mut pairs = Vec::new();
        for (field, value) in entry.map {
            let bytes = Vec::<u8>::from_redis_value(value).unwrap();
            match field.as_str() {
                PAYLOAD => payload = bytes,
                _ => pairs.push((field, String::from_utf8(bytes).unwrap())),
            }
        }
        ReadMessage::new(payload, pairs.iter().map(|(name, text)| (name.as_str(), text.as_str())))
    });
    entries.collect()
}

struct Streams(Lease);

impl Streams {
    fn new() -> Option<Self> {
        require(Service::Redis).map(Self)
    }
}

impl SinkHarness for Streams {
    type Sink = RedisStreamSink;

    async fn sink(&self) -> RedisStreamSink {
        RedisStreamSink::options(self.0.url()).unwrap().prefix("law:").open()
    }

    async fn sink_at(&self, address: SocketAddr) -> RedisStreamSink {
        let options = RedisStreamSink::options(&format!("redis://{address}")).unwrap();
        options.timeout(Duration::from_secs(1)).open()
    }

    async fn topic(&self) -> String {
        unique("law")
    }

    /// Redis takes everything that an event may be.
    async fn refusing(&self) -> Option<(String, Bytes)> {
        None
    }

    async fn read(&self, topic: &str) -> Vec<ReadMessage> {
        read(self.0.url(), &format!("law:{topic}")).await
    }
}

mod laws {
    semel::sink_conformance!(super::Streams::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_none_and_the_repeat_is_appended_once() {
    let Some(server) = require(Service::Redis) else { return };
    let stream = unique("lost");
    let proxy = Proxy::start(server.url().trim_start_matches("redis://")).unwrap();
    let options = RedisStreamSink::options(&format!("redis://{}", proxy.addr())).unwrap();
    let mut sink = options.timeout(PATIENCE).open();
    lose_an_answer(&mut sink, &proxy, &stream).await;
    let seen = read(server.url(), &stream).await;
    assert_eq!((texts(&seen), seen.len()), (vec!["1".into(), "2".into(), "3".into()], 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_is_forgotten_after_its_time_and_a_stream_is_trimmed() {
    let Some(server) = require(Service::Redis) else { return };
    let stream = unique("short");
    let options = RedisStreamSink::options(server.url()).unwrap();
    let mut sink = options.clone().remember(Duration::ZERO).entries_max(100).open();
    let one = [event(&stream, "a", 1)];
    assert!(confirmed(&sink.publish(&one).await));
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(confirmed(&sink.publish(&one).await));
    assert_eq!(read(server.url(), &stream).await.len(), 2);
    let many: Vec<_> = (0..1_000).map(|n| event(&stream, "a", n)).collect();
    assert!(confirmed(&sink.publish(&many).await));
    let left = read(server.url(), &stream).await.len();
    assert!((100..=300).contains(&left), "{left} entries are left of a thousand");
    let ids: usize = connect(server.url()).await.zcard(format!("{{{stream}}}:semel-seen")).await.unwrap();
    assert!(ids <= 1_000, "{ids} ids are kept");
}

/// The stream's name is taken by something else: nothing is confirmed, other topics go on, and when it is free again so
/// does this one, in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_taken_fails_its_topic_alone() {
    let Some(server) = require(Service::Redis) else { return };
    let (taken, free) = (unique("taken"), unique("free"));
    let mut connection = connect(server.url()).await;
    let _: () = connection.set(&taken, "a string").await.unwrap();
    let mut sink = RedisStreamSink::options(server.url()).unwrap().open();
    let events = [event(&taken, "a", 1), event(&free, "a", 2), event(&taken, "a", 3)];
    let answers = sink.publish(&events).await;
    assert!(matches!(&answers[0], Published::Failed(_)), "{answers:?}");
    assert_eq!(answers[1], Published::Confirmed);
    assert!(matches!(&answers[2], Published::Failed(_)), "{answers:?}");
    let _: () = connection.del(&taken).await.unwrap();
    assert!(confirmed(&sink.publish(&events).await));
    assert_eq!(texts(&read(server.url(), &taken).await), ["1", "3"]);
    assert_eq!(read(server.url(), &free).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_redis_keeps_what_it_confirmed() {
    let Some(mut server) = alone(Service::Redis) else { return };
    let stream = unique("killed");
    let mut sink = RedisStreamSink::options(server.url()).unwrap().timeout(PATIENCE).open();
    assert!(confirmed(&sink.publish(&[event(&stream, "a", 1)]).await));
    server.kill().unwrap();
    let second = [event(&stream, "a", 2)];
    let answers = sink.publish(&second).await;
    assert!(matches!(&answers[0], Published::Failed(_)), "{answers:?}");
    server.start().unwrap();
    let mut answers = sink.publish(&second).await;
    for _ in 0..20 {
        if confirmed(&answers) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        answers = sink.publish(&second).await;
    }
    assert!(confirmed(&answers), "Redis is back and takes nothing: {answers:?}");
    assert_eq!(texts(&read(server.url(), &stream).await), ["1", "2"]);
}

/// A server that is demoted keeps its connections, and takes nothing on them: a client that asks for a new one gets to
/// its successor.
#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_server_is_not_stayed_with() {
    let Some(server) = alone(Service::Redis) else { return };
    let stream = unique("demoted");
    let proxy = Proxy::start(server.url().trim_start_matches("redis://")).unwrap();
    let mut sink = RedisStreamSink::options(&format!("redis://{}", proxy.addr())).unwrap().open();
    assert!(confirmed(&sink.publish(&[event(&stream, "a", 1)]).await));
    let (mut admin, connections) = (connect(server.url()).await, proxy.accepted());
    let of = async |admin: &mut redis::aio::MultiplexedConnection, host: &str, port: &str| {
        redis::cmd("REPLICAOF").arg(host).arg(port).exec_async(admin).await.unwrap();
    };
    of(&mut admin, "127.0.0.1", "1").await;
    let second = [event(&stream, "a", 2)];
    let refused = sink.publish(&second).await;
    of(&mut admin, "NO", "ONE").await;
    assert!(matches!(&refused[0], Published::Failed(_)), "{refused:?}");
    assert!(confirmed(&sink.publish(&second).await));
    assert!(proxy.accepted() > connections, "it asks the same server for ever");
    assert_eq!(texts(&read(server.url(), &stream).await), ["1", "2"]);
}

/// Wherever the connection is cut while it is asked: it could not be asked, and is not taken for one that keeps all.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_connection_is_no_answer() {
    let Some(server) = alone(Service::Redis) else { return };
    let address = server.url().trim_start_matches("redis://");
    let proxy = Proxy::start(address).unwrap();
    let options = RedisStreamSink::options(&format!("redis://{}", proxy.addr())).unwrap();
    let mut sink = options.timeout(Duration::from_secs(5)).open();
    let url = server.url();
    let fsync = async |value: &str| {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("appendfsync").arg(value);
        set.exec_async(&mut connect(url).await).await.unwrap();
    };
    fsync("everysec").await;
    let (mut cut, mut said) = (0, Vec::new());
    for bytes in (0..10_000).step_by(2) {
        proxy.next(1, Fault::CutAnswerAfter(bytes));
        match sink.probe().await {
            Err(_) => cut += 1,
            Ok(()) => {
                said = sink.guarantee().violations;
                break;
            }
        }
    }
    fsync("always").await;
    assert!(cut > 50, "only {cut} places to cut it: {said:?}");
    assert!(said.len() == 1 && said[0].contains("appendfsync everysec"), "{said:?}");
}

/// As a service in another language may write it; an event of ours cannot have such headers.
#[tokio::test(flavor = "multi_thread")]
async fn a_header_does_not_pass_for_the_payload_or_the_key() {
    let Some(server) = require(Service::Redis) else { return };
    let name = unique("forged");
    let (_directory, path, outbox) = file();
    let insert = "INSERT INTO semel_outbox (topic, type, headers, payload)
                  VALUES (?1, 'made', '{\"semel-payload\": \"forged\", \"semel-key\": \"forged\"}', CAST('mine' AS BLOB))";
    sqlite(&path).execute(insert, [&name]).unwrap();
    let forged = batch(&mut outbox.source()).await.events[0].event.clone();
    let mut sink = RedisStreamSink::options(server.url()).unwrap().open();
    assert!(confirmed(&sink.publish(&[forged]).await));
    let fields: Vec<(String, Vec<String>)> = redis::cmd("XRANGE")
        .arg(&name)
        .arg("-")
        .arg("+")
        .query_async(&mut connect(server.url()).await)
        .await
        .unwrap();
    let named = |wanted: &str| -> Vec<&str> {
        let pairs = fields[0].1.chunks(2).filter(|pair| pair[0] == wanted);
        pairs.map(|pair| pair[1].as_str()).collect()
    };
    assert_eq!(named(PAYLOAD), ["mine"]);
    assert_eq!(named("semel-key"), [""; 0]);
}
