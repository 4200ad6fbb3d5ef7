//! An address that follows the primary: what a store sees while it moves.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::store::redis::RedisStore;
use semel::store::{Claimed, ErrorKind, Fate, Store};
use testkit::services::{Service, require};

use super::support::{Server, claim, done, options, replayed, run, settled};

/// What HAProxy or a virtual address is to a service: connections go to the server that is the primary when they are
/// made, and those that are there stay where they are.
struct Address {
    at: SocketAddr,
    primary: Arc<Mutex<SocketAddr>>,
}

impl Address {
    fn of(primary: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let primary = Arc::new(Mutex::new(SocketAddr::from(([127, 0, 0, 1], primary.address().1))));
        let to = primary.clone();
        std::thread::spawn(move || {
            for inward in listener.incoming() {
                let Ok(inward) = inward else { return };
                let Ok(outward) = TcpStream::connect(*to.lock().unwrap()) else { continue };
                let back = (outward.try_clone().unwrap(), inward.try_clone().unwrap());
                std::thread::spawn(move || carry(inward, outward));
                std::thread::spawn(move || carry(back.0, back.1));
            }
        });
        Self { at, primary }
    }

    fn moves_to(&self, primary: &Server) {
        *self.primary.lock().unwrap() = SocketAddr::from(([127, 0, 0, 1], primary.address().1));
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 16 << 10];
    while let Ok(read) = from.read(&mut bytes) {
        if read == 0 || to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

#[tokio::test]
async fn a_primary_that_becomes_a_replica_is_an_outage_until_the_address_points_to_a_primary() {
    let Some(_) = require(Service::Redis) else { return };
    let old = Server::start(&[]).await;
    let (host, port) = (old.address().0, old.address().1.to_string());
    let new = Server::start(&["--replicaof", host, &port]).await;
    let address = Address::of(&old);
    let url = format!("redis://{}?timeout=30000&replicas=1", address.at);
    options(&old.url(), "s").create().await.unwrap();
    let waiting = RedisStore::open(&url).await.unwrap();
    settled(&waiting, &claim("in-step")).await;
    let store = RedisStore::open(&format!("redis://{}?timeout=30000", address.at)).await.unwrap();
    done(&waiting, "before").await;
    done(&store, "warm").await;

    // The failover: the other one is promoted, and this one follows it. Its connections stay.
    new.say::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    old.say::<()>(&["REPLICAOF", new.address().0, &new.address().1.to_string()]).await;
    for n in 0..20 {
        let error = store.claim(claim(&format!("meanwhile-{n}"))).await.unwrap_err();
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotApplied), "{error}");
        let error = waiting.claim(claim(&format!("meanwhile-{n}"))).await.unwrap_err();
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotApplied), "{error}");
    }

    // The address moves. The connections to the old one are not cut: the stores leave them by themselves.
    address.moves_to(&new);
    let ticket = loop_until_granted(&store, "meanwhile-0").await;
    assert_eq!(ticket.attempt, 1, "nothing had been applied");
    assert_eq!(replayed(&store, "before").await, "before");
    for n in 0..10 {
        run(&store, claim(&format!("after-{n}"))).await;
    }
    // And the old one, now a replica of the new one, counts for those that wait for one.
    settled(&waiting, &claim("in-step")).await;
}

async fn loop_until_granted(store: &RedisStore, key: &str) -> semel::store::Ticket {
    for _ in 0..1_000 {
        match store.claim(claim(key)).await {
            Ok(Claimed::Run(ticket)) => return ticket,
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert_eq!(
                    (error.kind(), error.fate()),
                    (ErrorKind::Unavailable, Fate::NotApplied),
                    "{error}"
                );
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the new primary is not found");
}
