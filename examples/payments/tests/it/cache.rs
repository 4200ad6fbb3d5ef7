//! Redis in front: it answers for what is committed, and nothing is wrong without it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use testkit::services::{Service as Server, require};

use crate::database::Database;
use crate::service::{PATIENCE, Service};

/// The answer of Redis to a command, up to the end of its first kilobytes.
fn redis(url: &str, command: &str) -> String {
    let mut stream = TcpStream::connect(url.strip_prefix("redis://").unwrap()).unwrap();
    write!(stream, "{command}\r\nQUIT\r\n").unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn a_replay_comes_from_redis_once_it_is_there() {
    let (Some(server), Some(database)) = (require(Server::Redis), Database::postgres()) else { return };
    let prefix = format!("pay{:08x}", fastrand::u32(..));
    let cache = format!("{}?prefix={prefix}&timeout=2000", server.url());
    let service = Service::start_with(&database, Some(&cache), None);
    let first = service.pay("order-1", 4_200);
    assert_eq!(service.pay("order-1", 4_200).id(), first.id());
    let until = Instant::now() + PATIENCE;
    while !redis(server.url(), &format!("KEYS {prefix}*")).contains(&prefix) {
        assert!(Instant::now() < until, "nothing comes into the cache");
        std::thread::sleep(Duration::from_millis(5));
    }
    database.judge(1, 0);
    // Only to see which one answers: the database would not know the key any more.
    database.sweep();
    let replayed = service.pay("order-1", 4_200);
    assert_eq!((replayed.status, replayed.replayed, replayed.id()), (201, true, first.id()));
    assert_eq!(database.payments("order-1"), 1);
}

#[test]
fn without_redis_everything_is_the_same() {
    let Some(database) = Database::postgres() else { return };
    // No server listens there.
    let service = Service::start_with(&database, Some("redis://127.0.0.1:1"), None);
    let first = service.pay("order-1", 4_200);
    let again = service.pay("order-1", 4_200);
    assert_eq!((again.status, again.replayed, again.id()), (201, true, first.id()));
    assert_eq!(service.pay("order-1", 1).status, 409);
    database.judge(1, 0);
}
