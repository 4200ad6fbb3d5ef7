//! Redis as a cache in front of an authority: entries under keys, and nothing decided here but which is newer.

use redis::{Cmd, Value};

use super::connection::Link;
use super::error::{self, Failed};
use super::options::RedisOptions;
use super::script::Script;
use crate::store::StoreError;

pub(in crate::store) struct Cache {
    link: Link,
    prefix: Vec<u8>,
    fill: Script,
}

impl Cache {
    /// Connects when it is first asked: a cache that is down must not keep a service from starting.
    pub(in crate::store) fn new(options: &RedisOptions) -> Result<Self, StoreError> {
        let prefix = [options.prefix.as_bytes(), b"c"].concat();
        Ok(Self { link: Link::new(options)?, prefix, fill: Script::new(include_str!("lua/fill.lua")) })
    }

    fn key(&self, name: &[u8]) -> Vec<u8> {
        [&self.prefix, name].concat()
    }

    pub(in crate::store) async fn get(&self, name: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let mut ask = Cmd::new();
        ask.arg("GET").arg(self.key(name));
        match self.link.call(ask, 0).await.map_err(Failed::explain)? {
            Value::BulkString(bytes) => Ok(Some(bytes)),
            Value::Nil => Ok(None),
            other => Err(error::unexpected(&other)),
        }
    }

    /// Stores an entry that begins with kind and epoch, unless a newer one is there; says whether it did.
    pub(in crate::store) async fn fill(
        &self,
        name: &[u8],
        entry: &[u8],
        ms: u64,
    ) -> Result<bool, StoreError> {
        let ms = ms.max(1).to_string();
        let answer = self.fill.run(&self.link, &[&self.key(name)], &[entry, ms.as_bytes()]).await?;
        Ok(answer.first() == Some(&Value::Int(1)))
    }
}
