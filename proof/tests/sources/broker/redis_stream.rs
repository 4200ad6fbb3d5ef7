//! A stream and a group of the same name.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::streams::StreamInfoGroupsReply;
use redis::{AsyncCommands, Client, RedisError};

use crate::SOON;

pub struct RedisStream {
    client: Client,
    stream: String,
}

impl RedisStream {
    pub fn new(url: &str, stream: &str) -> Self {
        Self { client: Client::open(url).unwrap(), stream: stream.to_owned() }
    }

    async fn connection(&self) -> Result<MultiplexedConnection, RedisError> {
        self.client.get_multiplexed_async_connection().await
    }

    /// Again from the beginning while the server is away: then some are there twice more.
    pub async fn publish(&self, sent: &[(String, usize)]) {
        let until = Instant::now() + SOON;
        while let Err(error) = self.try_publish(sent).await {
            assert!(Instant::now() < until, "{error}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn try_publish(&self, sent: &[(String, usize)]) -> Result<(), RedisError> {
        let mut connection = self.connection().await?;
        for some in sent.chunks(1_000) {
            let mut add = redis::pipe();
            for (key, n) in some {
                let id = format!("{key}/{n}");
                let fields = [("semel-id", id), ("semel-key", key.clone()), ("semel-payload", n.to_string())];
                add.xadd(&self.stream, "*", &fields).ignore();
            }
            add.query_async::<()>(&mut connection).await?;
        }
        Ok(())
    }

    /// Those that somebody has, and those that nobody got. Before there is a group it is all.
    pub async fn behind(&self) -> i64 {
        let mut connection = self.connection().await.unwrap();
        let groups: StreamInfoGroupsReply = connection.xinfo_groups(&self.stream).await.unwrap();
        let Some(group) = groups.groups.first() else {
            return connection.xlen(&self.stream).await.unwrap();
        };
        let after = format!("({}", group.last_delivered_id);
        let unread: Vec<redis::Value> = connection.xrange(&self.stream, after, "+").await.unwrap();
        i64::try_from(group.pending + unread.len()).unwrap()
    }
}
