//! `?replicas=1`: acknowledged when a replica has it, in doubt when it is not known to.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use semel::store::redis::RedisStore;
use semel::store::{Claimed, Finished, Store};
use testkit::proxy::{Fault, Proxy};
use testkit::services::{Service, require};

use super::support::{
    Server, body_of, claim, completed, done, in_doubt, open_at_last, options, run, settled,
};

/// A primary and a replica of it that is in step; the way between them can be stopped.
struct Pair {
    primary: Server,
    replica: Server,
    between: Proxy,
    /// Does not wait for the replica.
    quick: RedisStore,
}

impl Pair {
    async fn new() -> Self {
        let primary = Server::start(&[]).await;
        let quick = options(&primary.url(), "s").create().await.unwrap();
        let between = Proxy::start(primary.address()).unwrap();
        let (host, port) = (between.addr().ip().to_string(), between.addr().port().to_string());
        let replica = Server::start(&["--replicaof", &host, &port]).await;
        let pair = Self { primary, replica, between, quick };
        settled(&pair.waiting(1).await, &claim("in-step")).await;
        pair
    }

    /// Waits for the replica as long as a busy machine may take.
    async fn waiting(&self, connections: usize) -> RedisStore {
        open_at_last(&self.url(30_000, connections)).await
    }

    /// Waits for a replica that does not answer; half of its time-out is for that.
    async fn brief(&self, connections: usize) -> RedisStore {
        open_at_last(&self.url(2_000, connections)).await
    }

    fn url(&self, timeout_ms: u32, connections: usize) -> String {
        format!("{}?replicas=1&timeout={timeout_ms}&connections={connections}", self.primary.url())
    }
}

#[tokio::test]
async fn with_a_replica_it_is_acknowledged_and_without_it_is_in_doubt() {
    let Some(_) = require(Service::Redis) else { return };
    let mut pair = Pair::new().await;
    let (store, brief) = (pair.waiting(2).await, pair.brief(2).await);
    done(&store, "alive").await;
    assert_eq!(body_of(store.claim(claim("alive")).await), "alive");
    let open = run(&store, claim("open")).await;

    pair.replica.kill();
    let dead = claim("dead");
    // Then asked again, over whichever connection: it is there, and it is still in doubt.
    for _ in 0..5 {
        in_doubt(async || brief.claim(dead.clone()).await).await;
        in_doubt(async || brief.finish(open, completed("open")).await).await;
    }

    pair.replica.restart().await;
    let Claimed::Run(ticket) = settled(&brief, &dead).await else { panic!("it was granted") };
    assert_eq!(ticket.attempt, 1);
    assert_eq!(store.finish(open, completed("other")).await.unwrap(), Finished::Already);
    assert_eq!(body_of(store.claim(claim("open")).await), "open");
}

#[tokio::test]
async fn what_somebody_else_wrote_is_not_replayed_before_a_replica_has_it() {
    let Some(_) = require(Service::Redis) else { return };
    let pair = Pair::new().await;
    pair.between.set(Fault::Hang);
    done(&pair.quick, "late").await;
    // A connection that has written nothing itself.
    let store = pair.brief(1).await;
    in_doubt(async || store.claim(claim("late")).await).await;
    pair.between.set(Fault::Pass);
    let claimed = settled(&store, &claim("late")).await;
    assert_eq!(body_of(Ok(claimed)), "late");
}

/// What the server was asked, and by whom: address and command, scripts' own calls left out.
struct Monitor(BufReader<TcpStream>);

impl Monitor {
    fn of(server: &Server) -> Self {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut lines = BufReader::new(stream);
        let mut ok = String::new();
        lines.read_line(&mut ok).unwrap();
        assert_eq!(ok, "+OK\r\n");
        Self(lines)
    }

    fn next(&mut self) -> (String, String) {
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            let (_, rest) = line.split_once('[').unwrap();
            let (who, what) = rest.split_once(']').unwrap();
            if !who.ends_with(" lua") {
                let command = what.split('"').nth(1).unwrap().to_uppercase();
                return (who.to_owned(), command);
            }
        }
    }
}

#[tokio::test]
async fn the_wait_is_behind_a_write_on_the_connection_of_the_script() {
    const CLAIMS: usize = 6;
    let Some(_) = require(Service::Redis) else { return };
    let pair = Pair::new().await;
    let store = pair.waiting(2).await;
    done(&store, "done").await;
    done(&store, "warm").await;
    let mut monitor = Monitor::of(&pair.primary);
    for n in 0..CLAIMS {
        // Replays write nothing; since Redis 7.2 a wait behind them alone would wait for nothing.
        let key = if n % 2 == 0 { "done".to_owned() } else { format!("new-{n}") };
        store.claim(claim(&key)).await.unwrap();
    }
    let (mut asked, mut waits) = (Vec::new(), 0);
    while waits < CLAIMS {
        let (who, command) = monitor.next();
        if matches!(command.as_str(), "EVALSHA" | "SET" | "WAIT") {
            waits += usize::from(command == "WAIT");
            asked.push((who, command));
        }
    }
    for request in asked.chunks(3) {
        let commands: Vec<_> = request.iter().map(|(_, command)| command.as_str()).collect();
        assert_eq!(commands, ["EVALSHA", "SET", "WAIT"], "{asked:?}");
        assert!(request.iter().all(|(who, _)| *who == request[0].0), "{asked:?}");
    }
}
