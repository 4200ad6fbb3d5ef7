//! Redis as a cache in front of an authority: entries under keys; the only decision here is which entry is newer.

use redis::{Cmd, Value};

use super::connection::Connections;
use super::error::{self, Failed};
use super::options::RedisOptions;
use super::script::Script;
use crate::store::StoreError;

pub(in crate::store) struct Cache {
    connections: Connections,
    prefix: Vec<u8>,
    fill: Script,
}

impl Cache {
    /// Connects on first use: a cache that is down must not keep a service from starting.
    pub(in crate::store) fn new(options: &RedisOptions) -> Result<Self, StoreError> {
        let prefix = [options.prefix.as_bytes(), b"c"].concat();
        Ok(Self {
            connections: Connections::new(options)?,
            prefix,
            fill: Script::new(include_str!("lua/fill.lua")),
        })
    }

    fn key(&self, name: &[u8]) -> Vec<u8> {
        [&self.prefix, name].concat()
    }

    pub(in crate::store) async fn get(&self, name: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let mut ask = Cmd::new();
        ask.arg("GET").arg(self.key(name));
        match self.connections.call(ask, 0).await.map_err(Failed::explain)? {
            Value::BulkString(bytes) => Ok(Some(bytes)),
            Value::Nil => Ok(None),
            other => Err(error::unexpected(&other)),
        }
    }

    /// Stores an entry, which begins with kind and epoch, unless a newer one is there; returns whether it did.
    pub(in crate::store) async fn fill(
        &self,
        name: &[u8],
        entry: &[u8],
        ms: u64,
    ) -> Result<bool, StoreError> {
        let ms = ms.max(1).to_string();
        let answer = self.fill.run(&self.connections, &[&self.key(name)], &[entry, ms.as_bytes()]).await?;
        Ok(answer.first() == Some(&Value::Int(1)))
    }
}
