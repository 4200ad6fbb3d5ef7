//! The scripts, and how they are called: by their hash, and by their text where the server has forgotten it.

use std::sync::Arc;

use redis::{Cmd, Value};

use super::connection::Link;
use super::error::{self, Failed};
use crate::store::StoreError;

/// Changes the text of the script of that name, for tests.
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
    /// What the server is sent: for whoever measures it by other means.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match name {
            "claim" => Some(&self.claim.text),
            "finish" => Some(&self.finish.text),
            _ => None,
        }
    }

    pub(super) fn new(edit: Option<&Edit>) -> Self {
        let deciding = |name: &str, text: &str| {
            let text = format!("{BEGIN}\n{text}");
            Script::new(match edit {
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

    /// Runs it. A server that does not know it (restarted, failed over, `SCRIPT FLUSH`) gets its text, which it
    /// keeps: NOSCRIPT is said before anything is done.
    pub(super) async fn run(
        &self,
        link: &Link,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<Vec<Value>, StoreError> {
        self.run_with(link, keys, args, 0).await
    }

    /// As [`run`](Self::run); the answer is given when this many replicas have what it changed.
    pub(super) async fn run_with(
        &self,
        link: &Link,
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
        let mut answer = link.call(command("EVALSHA", &self.hash), replicas).await;
        if answer.as_ref().is_err_and(Failed::is_no_script) {
            answer = link.call(command("EVAL", &self.text), replicas).await;
        }
        match answer.map_err(|failed| failed.explain())? {
            Value::Array(parts) => Ok(parts),
            other => Err(error::unexpected(&other)),
        }
    }
}
