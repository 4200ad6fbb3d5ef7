//! The Lua scripts, called by hash (`EVALSHA`), or by text (`EVAL`) if the server does not have them.

use std::sync::Arc;

use redis::{Cmd, Value};

use super::connection::Connections;
use super::error::{self, Failed};
use crate::fault::Hook;
use crate::store::StoreError;

/// Changes the text of the script with that name, for tests.
pub(super) type Edit = Arc<dyn Fn(&str, String) -> String + Send + Sync>;

pub(super) struct Script {
    text: String,
    hash: String,
}

/// Every script this store runs.
pub(super) struct Scripts {
    pub(super) claim: Script,
    pub(super) renew: Script,
    pub(super) finish: Script,
    pub(super) decide: Script,
    pub(super) get: Script,
    pub(super) now: Script,
}

const BEGIN: &str = include_str!("lua/begin.lua");

impl Scripts {
    pub(super) fn new(edit: &Hook<Edit>) -> Self {
        let deciding = |name: &str, text: &str| {
            let text = format!("{BEGIN}\n{text}");
            Script::new(match edit.get() {
                Some(edit) => edit(name, text),
                None => text,
            })
        };
        Self {
            claim: deciding("claim", include_str!("lua/claim.lua")),
            renew: deciding("renew", include_str!("lua/renew.lua")),
            finish: deciding("finish", include_str!("lua/finish.lua")),
            decide: deciding("decide", include_str!("lua/decide.lua")),
            get: deciding("get", include_str!("lua/get.lua")),
            now: deciding("now", include_str!("lua/now.lua")),
        }
    }
}

impl Script {
    pub(super) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }

    /// Runs it. A server that does not have it (restarted, failed over, `SCRIPT FLUSH`) gets its text, which it keeps.
    /// That is safe: NOSCRIPT is returned before anything is done.
    pub(super) async fn run(
        &self,
        connections: &Connections,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<Vec<Value>, StoreError> {
        self.run_with(connections, keys, args, 0).await
    }

    /// As [`run`](Self::run), but answers only when this many replicas have what it changed.
    pub(super) async fn run_with(
        &self,
        connections: &Connections,
        keys: &[&[u8]],
        args: &[&[u8]],
        replicas: u32,
    ) -> Result<Vec<Value>, StoreError> {
        let command = |call: &str, script: &str| {
            let mut command = Cmd::new();
            command.arg(call).arg(script).arg(keys.len());
            keys.iter().chain(args).for_each(|part| {
                command.arg(*part);
            });
            command
        };
        let mut answer = connections.call(command("EVALSHA", &self.hash), replicas).await;
        if answer.as_ref().is_err_and(Failed::is_no_script) {
            answer = connections.call(command("EVAL", &self.text), replicas).await;
        }
        match answer.map_err(|failed| failed.explain())? {
            Value::Array(parts) => Ok(parts),
            other => Err(error::unexpected(&other)),
        }
    }
}
