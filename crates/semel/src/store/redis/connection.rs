//! Connections: shared by all callers, bounded in time and number, replaced when they break.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, RedisResult, Value};
use tokio::sync::{Mutex, Semaphore};

use super::error::Failed;
use super::options::RedisOptions;
use super::tls;
use crate::store::{ErrorKind, Fate, StoreError};
use crate::timeout::bounded;

/// Connect backoff: pause after a failed connect.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// The connections to a cluster are replaced at most this often.
const CLUSTER_AGE_MIN: Duration = Duration::from_millis(500);
/// Retries after a redirect of a cluster, or while a slot is migrating.
const REDIRECTS_MAX: u32 = 16;
/// Expiry of the key written for `WAIT`.
const WRITTEN_MS: u64 = 60_000;

/// The connections to one server, or to all nodes of a cluster.
pub(super) struct Connections {
    kind: Kind,
    timeout: Duration,
    permits: Semaphore,
    requests_max: usize,
}

enum Kind {
    Plain { connections: Vec<Plain>, turn: AtomicUsize },
    Cluster(Box<Cluster>),
}

/// A node of a cluster; `None` is the only server.
pub(super) type Node = Option<(String, u16)>;

impl Connections {
    /// Does not connect yet: the first request does.
    pub(super) fn new(options: &RedisOptions) -> Result<Self, StoreError> {
        let timeout = options.timeout;
        let kind = match options.cluster {
            true => {
                let cluster = Cluster::new(options).map_err(|e| Failed::NotSent(e).explain())?;
                Kind::Cluster(Box::new(cluster))
            }
            false => {
                let mut connections = Vec::new();
                for _ in 0..options.connections {
                    connections.push(Plain::new(options).map_err(|e| Failed::NotSent(e).explain())?);
                }
                Kind::Plain { connections, turn: AtomicUsize::new(0) }
            }
        };
        let (requests_max, permits) = (options.requests_max, Semaphore::new(options.requests_max));
        Ok(Self { kind, timeout, permits, requests_max })
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.kind, Kind::Cluster(_))
    }

    /// Sends a command about keys; waits for its answer, and until `replicas` replicas have what it wrote.
    pub(super) async fn call(&self, command: Cmd, replicas: u32) -> Result<Value, Failed> {
        let _permit = match self.permits.try_acquire() {
            Ok(permit) => permit,
            Err(_) => match tokio::time::timeout(self.timeout, self.permits.acquire()).await {
                Ok(Ok(permit)) => permit,
                _ => return Err(Failed::Ours(busy(self.requests_max))),
            },
        };
        match &self.kind {
            Kind::Plain { connections, turn } => {
                let turn = turn.fetch_add(1, Ordering::Relaxed);
                connections[turn % connections.len()].call(&command, replicas, self.timeout).await
            }
            Kind::Cluster(cluster) => {
                let ask = |mut connection| async move { command.query_async(&mut connection).await };
                cluster.call(self.timeout, ask).await
            }
        }
    }

    /// Every server that holds keys.
    pub(super) async fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        let Kind::Cluster(cluster) = &self.kind else { return Ok(vec![None]) };
        let mut ask = Cmd::new();
        ask.arg("CLUSTER").arg("SLOTS");
        let any_node = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
        let ask =
            |mut connection: ClusterConnection| async move { connection.route_command(ask, any_node).await };
        let slots = cluster.call(self.timeout, ask).await.map_err(Failed::explain)?;
        let mut nodes = Vec::new();
        let Value::Array(ranges) = slots else { return Err(super::error::unexpected(&slots)) };
        for range in &ranges {
            if let Value::Array(parts) = range
                && let Some(Value::Array(master)) = parts.get(2)
                && let [Value::BulkString(host), Value::Int(port), ..] = &master[..]
            {
                let node = Some((String::from_utf8_lossy(host).into_owned(), *port as u16));
                if !nodes.contains(&node) {
                    nodes.push(node);
                }
            }
        }
        Ok(nodes)
    }

    /// Sends a command to one particular server.
    pub(super) async fn call_on(&self, node: &Node, command: Cmd) -> Result<Value, Failed> {
        match (&self.kind, node) {
            (Kind::Cluster(cluster), Some((host, port))) => {
                let to = SingleNodeRoutingInfo::ByAddress { host: host.clone(), port: *port };
                let to = RoutingInfo::SingleNode(to);
                let ask = |mut connection: ClusterConnection| async move {
                    connection.route_command(command, to).await
                };
                cluster.call(self.timeout, ask).await
            }
            _ => self.call(command, 0).await,
        }
    }
}

/// A cluster. The driver keeps a connection to each node, follows redirects, and reconnects by itself. But after a node
/// was gone for a while the driver may stay broken even when the node is back. A caller that sees that drops the whole
/// connection, and the next one connects anew.
struct Cluster {
    client: ClusterClient,
    live: RwLock<Option<LiveCluster>>,
    /// Locked while connecting: one caller connects, the others wait for it. Holds when and why the last try failed.
    connecting: Mutex<Option<(Instant, RedisError)>>,
    made: AtomicU64,
}

#[derive(Clone)]
struct LiveCluster {
    connection: ClusterConnection,
    number: u64,
    made_at: Instant,
}

impl Cluster {
    fn new(options: &RedisOptions) -> RedisResult<Self> {
        let builder = ClusterClient::builder(options.nodes.iter().map(String::as_str))
            .connection_timeout(options.timeout)
            .response_timeout(options.timeout)
            .retries(REDIRECTS_MAX)
            .min_retry_wait(5)
            .max_retry_wait(200);
        let builder = tls::cluster(builder, options);
        let (live, connecting) = (RwLock::new(None), Mutex::new(None));
        Ok(Self { client: builder.build()?, live, connecting, made: AtomicU64::new(0) })
    }

    /// One request, to wherever `ask` sends it.
    async fn call<F>(
        &self,
        timeout: Duration,
        ask: impl FnOnce(ClusterConnection) -> F,
    ) -> Result<Value, Failed>
    where
        F: Future<Output = RedisResult<Value>>,
    {
        let live = self.live(timeout).await?;
        let asked = bounded(timeout, ask(live.connection), timed_out).await;
        let answer = asked.map_err(Failed::SentToCluster);
        if answer.as_ref().is_err_and(Failed::spoils_connection) {
            self.forget(live.number);
        }
        answer
    }

    fn current(&self) -> Option<LiveCluster> {
        self.live.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn live(&self, timeout: Duration) -> Result<LiveCluster, Failed> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let Ok(mut failed) = tokio::time::timeout(timeout, self.connecting.lock()).await else {
            return Err(Failed::NotSent(timed_out()));
        };
        if let Some(live) = self.current() {
            return Ok(live);
        }
        if let Some((at, why)) = &*failed
            && at.elapsed() < RETRY_AFTER
        {
            return Err(Failed::NotSent(why.clone()));
        }
        match bounded(timeout, self.client.get_async_connection(), timed_out).await {
            Ok(connection) => {
                let number = self.made.fetch_add(1, Ordering::Relaxed);
                let live = LiveCluster { connection, number, made_at: Instant::now() };
                *self.live.write().unwrap_or_else(PoisonError::into_inner) = Some(live.clone());
                *failed = None;
                Ok(live)
            }
            Err(error) => {
                *failed = Some((Instant::now(), error.clone()));
                Err(Failed::NotSent(error))
            }
        }
    }

    /// Drops a broken connection, but keeps a young one: while a node is down its slots fail on every connection, and
    /// callers of the other nodes must not pay for a reconnect each time.
    fn forget(&self, number: u64) {
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        if live
            .as_ref()
            .is_some_and(|live| live.number == number && live.made_at.elapsed() >= CLUSTER_AGE_MIN)
        {
            *live = None;
        }
    }
}

/// One connection to one server, shared by all callers.
struct Plain {
    client: Client,
    config: AsyncConnectionConfig,
    /// The key written for `WAIT`; see [`call_and_wait`](Self::call_and_wait).
    written: String,
    live: RwLock<Option<Live>>,
    /// Locked while connecting: one caller connects, the others wait for it. Holds when and why the last try failed.
    connecting: Mutex<Option<(Instant, RedisError)>>,
    made: AtomicU64,
}

#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    number: u64,
}

impl Plain {
    fn new(options: &RedisOptions) -> RedisResult<Self> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(options.timeout))
            .set_response_timeout(Some(options.timeout));
        let client = tls::client(options)?;
        let (live, connecting) = (RwLock::new(None), Mutex::new(None));
        let written = format!("{}w", options.prefix);
        Ok(Self { client, config, written, live, connecting, made: AtomicU64::new(0) })
    }

    async fn call(&self, command: &Cmd, replicas: u32, timeout: Duration) -> Result<Value, Failed> {
        let live = self.live(timeout).await?;
        let mut connection = live.connection.clone();
        let answer = match replicas {
            0 => command.query_async(&mut connection).await.map_err(Failed::Sent),
            _ => self.call_and_wait(&mut connection, command, replicas, timeout).await,
        };
        if answer.as_ref().is_err_and(Failed::spoils_connection) {
            self.forget(live.number);
        }
        answer
    }

    /// Sends the command and right after it, on the same connection, `WAIT` until that many replicas have what it
    /// wrote.
    ///
    /// `WAIT` covers the last write of its own connection, since Redis 7.2 nothing else. The answer may rest on a
    /// write of another connection or process: a replay, a repeated claim. So a small key is written in between:
    /// everything before it also comes before it in the replication stream.
    async fn call_and_wait(
        &self,
        connection: &mut MultiplexedConnection,
        command: &Cmd,
        replicas: u32,
        timeout: Duration,
    ) -> Result<Value, Failed> {
        let ms = u64::try_from(timeout.as_millis() / 2).unwrap_or(1_000).max(1);
        let mut together = redis::pipe();
        together.add_command(command.clone());
        together.cmd("SET").arg(&self.written).arg("").arg("PX").arg(WRITTEN_MS);
        together.cmd("WAIT").arg(replicas).arg(ms).ignore_errors();
        let answers: Vec<RedisResult<Value>> =
            together.query_async(connection).await.map_err(Failed::Sent)?;
        let mut answers = answers.into_iter();
        let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
        let answer = next().map_err(Failed::Sent)?;
        next().map_err(Failed::Unconfirmed)?;
        let have = match next().map_err(Failed::Unconfirmed)? {
            Value::Int(have) => have,
            other => return Err(Failed::Ours(super::error::unexpected(&other))),
        };
        if have >= i64::from(replicas) {
            return Ok(answer);
        }
        let message = format!(
            "only {have} of {replicas} replicas confirmed the write within {ms} ms; retry, and check replication"
        );
        Err(Failed::Ours(StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, message)))
    }

    fn current(&self) -> Option<Live> {
        self.live.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The live connection, or a new one.
    async fn live(&self, timeout: Duration) -> Result<Live, Failed> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let Ok(mut failed) = tokio::time::timeout(timeout, self.connecting.lock()).await else {
            return Err(Failed::NotSent(timed_out()));
        };
        if let Some(live) = self.current() {
            return Ok(live);
        }
        if let Some((at, why)) = &*failed
            && at.elapsed() < RETRY_AFTER
        {
            return Err(Failed::NotSent(why.clone()));
        }
        match self.client.get_multiplexed_async_connection_with_config(&self.config).await {
            Ok(connection) => {
                let number = self.made.fetch_add(1, Ordering::Relaxed);
                let live = Live { connection, number };
                *self.live.write().unwrap_or_else(PoisonError::into_inner) = Some(live.clone());
                *failed = None;
                Ok(live)
            }
            Err(error) => {
                *failed = Some((Instant::now(), error.clone()));
                Err(Failed::NotSent(error))
            }
        }
    }

    /// Drops a connection that was seen to break; a newer one stays.
    fn forget(&self, number: u64) {
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        if live.as_ref().is_some_and(|live| live.number == number) {
            *live = None;
        }
    }
}

fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

fn busy(requests_max: usize) -> StoreError {
    let message =
        format!("{requests_max} requests to Redis are already in flight; retry later, or send fewer");
    StoreError::new(ErrorKind::Busy, Fate::NotApplied, message)
}
