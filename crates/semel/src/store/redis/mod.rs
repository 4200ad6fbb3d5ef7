//! Redis, Valkey and Redis Cluster.
//!
//! ```text
//!  callers ──▶ a few shared connections, everything pipelined ──▶ one script per request, one step for the server
//!                                                                  │
//!   s{7q}        marker of a bucket: generation, last epoch  ◀─────┤ checked first
//!   s{7q}o       the bucket's open intents                         │ all in one slot
//!   s{7q}…       record and lease of one intent              ◀─────┘
//! ```
//!
//! - **Every decision is a script** on the server, by the server's clock. The scripts decide as
//!   [`step`](crate::intent::state::step) does, and are tested against it.
//! - **Buckets**: intents are spread over 1,024 hash tags by their id, so one tenant is spread over all slots of a
//!   cluster, and each intent's keys are in one.
//! - **Retention**: Redis expires finished outcomes itself; [`sweep`](Store::sweep) has nothing to do and returns 0.
//!   Records in progress or uncertain have no expiry.
//! - **Data loss** is detected (see [`Memory`]) and reported as [`ErrorKind::Lost`], which no outage policy runs on.
//! - **Durable** only with `appendonly yes` and `appendfsync always`; checked when the store is opened.
//!
//! What Redis cannot promise: a replica that is promoted without the last writes has lost them, and that cannot be
//! detected. An acknowledged claim or outcome is then gone, and its retry runs again. `?replicas=1` makes that rarer,
//! not impossible. Where a second effect costs money, use a SQL store, with Redis in front of it.
//!
//! | module | what it decides |
//! |---|---|
//! | `script`, `layout` | the Lua scripts; keys and encoding of records |
//! | `connection` | shared by all callers, bounded, replaced when it breaks |
//! | `data_loss_marker` | shows whether Redis still has its data |
//! | `cache` | entries in front of an authority: which one is newer |
//! | `list` | pages of records |
//! | `probe` | checks the settings that durability depends on |
//! | `options`, `tls`, `error` | settings and their URL; TLS; what Redis' errors mean |

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::Value;

use self::connection::Connections;
use self::layout::{Keys, TIME_MAX};
use self::script::{Script, Scripts};
use super::encoding::{effect_code, safe_for_code, state_code, state_of};
use super::memory::check_size;
use super::{
    AnyStore, Capabilities, Claim, Claimed, Decide, Decided, ErrorKind, Fate, Filter, Finish, Finished,
    Migrated, Page, Record, Renewed, Store, StoreError, Ticket,
};
use crate::intent::identity::IntentId;
use crate::intent::policy::{Retention, StoreTime};
use crate::intent::state::State;

pub(super) mod cache;
mod connection;
mod data_loss_marker;
mod error;
mod layout;
mod list;
mod options;
mod probe;
mod script;
#[cfg_attr(not(feature = "redis-tls"), path = "no_tls.rs")]
mod tls;

pub use data_loss_marker::Memory;
pub use options::RedisOptions;
pub use probe::RedisSettings;

/// A store in Redis. Cheap to clone; clones share their connections.
///
/// ```no_run
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use semel::store::redis::RedisStore;
///
/// // Once, by hand, as `semel migrate --store redis://127.0.0.1` does:
/// RedisStore::options("redis://127.0.0.1")?.create().await?;
/// // In the service:
/// let store = RedisStore::open("redis://127.0.0.1").await?;
/// # drop(store); Ok::<(), semel::store::StoreError>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    connections: Connections,
    prefix: String,
    replicas: u32,
    scripts: Scripts,
    settings: Vec<RedisSettings>,
    /// The latest time this process got: a server's clock that is set back must not appear to run back.
    latest: AtomicU64,
}

pub(super) async fn open_url(url: &str, _create: bool) -> Result<AnyStore, StoreError> {
    // Never created as a side effect of opening: see `data_loss_marker`.
    Ok(AnyStore::new(RedisStore::open(url).await?))
}

pub(super) async fn migrate_url(url: &str) -> Result<Migrated, StoreError> {
    let options = RedisOptions::new(url)?;
    let before = options.clone().memory().await?;
    if !before.is_empty() && !before.is_whole() {
        let message = format!(
            "{} of {} buckets of this store have lost their data; investigate, then run `semel redis accept-loss` \
             to go on",
            before.missing, before.buckets
        );
        return Err(StoreError::new(ErrorKind::Lost, Fate::NotApplied, message));
    }
    options.create().await?;
    Ok(Migrated { before: before.version, now: data_loss_marker::VERSION })
}

impl RedisStore {
    /// Opens the store a URL names; see [`RedisOptions`] for its options. The store has to exist: a service must not
    /// treat a server that lost its data as a new one.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::options(url)?.open().await
    }

    /// Parses a URL into options.
    pub fn options(url: &str) -> Result<RedisOptions, StoreError> {
        RedisOptions::new(url)
    }

    async fn open_with(options: RedisOptions) -> Result<Self, StoreError> {
        let connections = Connections::new(&options)?;
        let settings = probe::ask(&connections).await?;
        probe::check(&settings, options.force_eviction)?;
        data_loss_marker::check(&connections, &options).await?;
        let scripts = Scripts::new(&options.edit);
        let inner = Inner {
            connections,
            prefix: options.prefix,
            replicas: options.replicas,
            scripts,
            settings,
            latest: AtomicU64::new(0),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The settings each server had when the store was opened.
    pub fn settings(&self) -> &[RedisSettings] {
        &self.inner.settings
    }

    /// Whether it is a Redis Cluster.
    pub fn is_cluster(&self) -> bool {
        self.inner.connections.is_cluster()
    }

    async fn run(
        &self,
        script: &Script,
        keys: &Keys,
        args: &[&[u8]],
        writes: bool,
    ) -> Result<Answer, StoreError> {
        let inner = &self.inner;
        let replicas = if writes { inner.replicas } else { 0 };
        let parts = script.run_with(&inner.connections, &keys.all(), args, replicas).await?;
        let answer = Answer(parts);
        if answer.number(0)? == 0 {
            return Err(error::lost(&keys.marker));
        }
        Ok(answer)
    }

    fn keys(&self, id: &IntentId) -> Keys {
        Keys::of(&self.inner.prefix, id)
    }

    async fn clock(&self) -> Result<StoreTime, StoreError> {
        // Any bucket will do; all buckets of a server share its clock.
        let keys = self.keys(&IntentId::from_bytes([0; 32]));
        let now = self.run(&self.inner.scripts.now, &keys, &[], false).await?.time(1)?;
        Ok(StoreTime(self.inner.latest.fetch_max(now.0, Ordering::Relaxed).max(now.0)))
    }
}

struct Answer(Vec<Value>);

impl Answer {
    fn number(&self, at: usize) -> Result<u64, StoreError> {
        match self.0.get(at) {
            Some(Value::Int(number)) if *number >= 0 => Ok(number.unsigned_abs()),
            other => Err(error::unexpected(other.unwrap_or(&Value::Nil))),
        }
    }

    fn state(&self, at: usize) -> Result<State, StoreError> {
        let wrong = |why| StoreError::new(ErrorKind::Corrupt, Fate::NotApplied, why);
        state_of(self.number(at)?.cast_signed()).map_err(wrong)
    }

    fn time(&self, at: usize) -> Result<StoreTime, StoreError> {
        self.number(at).map(StoreTime)
    }

    /// -1 is none.
    fn time_or_none(&self, at: usize) -> Result<Option<StoreTime>, StoreError> {
        match self.0.get(at) {
            Some(Value::Int(-1)) => Ok(None),
            _ => self.time(at).map(Some),
        }
    }

    fn bytes(&self, at: usize) -> Result<&[u8], StoreError> {
        match self.0.get(at) {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            other => Err(error::unexpected(other.unwrap_or(&Value::Nil))),
        }
    }
}

fn text(number: u64) -> String {
    number.to_string()
}

fn ms_text(retention: Retention) -> String {
    match retention {
        Retention::Ms(ms) => text(ms.min(TIME_MAX)),
        Retention::Forever => "-1".to_owned(),
    }
}

/// Two intents whose digests begin with the same 16 bytes. Does not happen by accident.
fn collision() -> StoreError {
    let message = "another intent has the same first 16 bytes of its digest; use another key";
    StoreError::new(ErrorKind::Corrupt, Fate::NotApplied, message)
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.inner.prefix).finish_non_exhaustive()
    }
}

impl Store for RedisStore {
    fn capabilities(&self) -> Capabilities {
        let durable =
            !self.inner.settings.is_empty() && self.inner.settings.iter().all(RedisSettings::is_durable);
        Capabilities { durable, shared: true, same_tx: false }
    }

    async fn now(&self) -> Result<StoreTime, StoreError> {
        self.clock().await
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let id = claim.intent.id();
        let keys = self.keys(&id);
        let (identity, print) = (layout::identity(&claim.intent), layout::fingerprint(&claim.fingerprint));
        let (effect, lease) = (effect_code(claim.effect).to_string(), text(claim.lease_ms.min(TIME_MAX)));
        let safe_for = safe_for_code(claim.effect, &claim.window).map_or(-1, |ms| ms.min(TIME_MAX as i64));
        let (safe_for, call) = (safe_for.to_string(), text(claim.window.call_ms.min(TIME_MAX)));
        let args: [&[u8]; 8] = [
            &keys.member,
            &identity,
            &print,
            claim.owner.as_bytes(),
            effect.as_bytes(),
            lease.as_bytes(),
            safe_for.as_bytes(),
            call.as_bytes(),
        ];
        let answer = self.run(&self.inner.scripts.claim, &keys, &args, true).await?;
        let now = answer.time(1)?;
        let existing = || {
            let record = layout::record(answer.bytes(3)?)?;
            Ok(record.existing(now, answer.number(2)? == 1))
        };
        Ok(match answer.number(0)? {
            1 => Claimed::Run(Ticket {
                id,
                owner: claim.owner,
                epoch: layout::epoch(answer.number(2)?, keys.bucket),
                attempt: answer.number(3)? as u32,
                lease_until: answer.time(4)?,
                safe_until: answer.time_or_none(6)?,
                other_recipe: answer.number(5)? == 1,
            }),
            2 => Claimed::Mismatch,
            3 => Claimed::InFlight(existing()?),
            4 => Claimed::Replay(existing()?),
            5 => Claimed::Uncertain(existing()?),
            _ => return Err(collision()),
        })
    }

    async fn renew(&self, ticket: Ticket, lease_ms: u64) -> Result<Renewed, StoreError> {
        let keys = self.keys(&ticket.id);
        let (epoch, lease) =
            (text(layout::epoch_us(ticket.epoch, keys.bucket)), text(lease_ms.min(TIME_MAX)));
        let args: [&[u8]; 4] = [&keys.member, ticket.owner.as_bytes(), epoch.as_bytes(), lease.as_bytes()];
        let answer = self.run(&self.inner.scripts.renew, &keys, &args, true).await?;
        Ok(match answer.number(0)? {
            1 => Renewed::Until(answer.time(2)?),
            _ => Renewed::Stale,
        })
    }

    async fn finish(&self, ticket: Ticket, finish: Finish) -> Result<Finished, StoreError> {
        check_size(finish.outcome.as_ref())?;
        let keys = self.keys(&ticket.id);
        let (epoch, retention) =
            (text(layout::epoch_us(ticket.epoch, keys.bucket)), ms_text(finish.retention));
        let state = state_code(State::from(finish.verdict)).to_string();
        let outcome = finish.outcome.map(|outcome| outcome.encode()).unwrap_or_default();
        let args: [&[u8]; 6] = [
            &keys.member,
            ticket.owner.as_bytes(),
            epoch.as_bytes(),
            state.as_bytes(),
            retention.as_bytes(),
            &outcome,
        ];
        let answer = self.run(&self.inner.scripts.finish, &keys, &args, true).await?;
        Ok(match answer.number(0)? {
            1 => Finished::Recorded,
            2 => Finished::Already,
            4 => Finished::Other(answer.state(2)?),
            _ => Finished::Stale,
        })
    }

    async fn get(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        let keys = self.keys(&id);
        let answer = self.run(&self.inner.scripts.get, &keys, &[], false).await?;
        let (now, raw) = (answer.time(1)?, answer.bytes(2)?);
        if raw.is_empty() {
            return Ok(None);
        }
        let record = layout::record(raw)?;
        Ok((record.intent.id() == id && record.state_at(now).is_some()).then_some(record))
    }

    async fn list(&self, filter: Filter) -> Result<Page, StoreError> {
        let inner = &self.inner;
        let memory = data_loss_marker::read(&inner.connections, &inner.prefix).await?;
        if !memory.is_whole() {
            return Err(error::lost(&layout::marker_key(&inner.prefix, 0)));
        }
        let now = self.clock().await?;
        list::page(&inner.connections, &inner.prefix, &filter, now).await
    }

    async fn decide(&self, id: IntentId, decide: Decide) -> Result<Decided, StoreError> {
        check_size(decide.outcome.as_ref())?;
        let keys = self.keys(&id);
        let (seen, retention) = (text(layout::epoch_us(decide.seen, keys.bucket)), ms_text(decide.retention));
        let ruling = layout::ruling_code(decide.ruling).to_string();
        let note = layout::note(&decide);
        let outcome = decide.outcome.map(|outcome| outcome.encode()).unwrap_or_default();
        let args: [&[u8]; 6] =
            [&keys.member, seen.as_bytes(), ruling.as_bytes(), retention.as_bytes(), &outcome, &note];
        let answer = self.run(&self.inner.scripts.decide, &keys, &args, true).await?;
        Ok(match answer.number(0)? {
            1 => Decided::Recorded,
            2 => Decided::Stale,
            _ => Decided::Refused(answer.state(2)?),
        })
    }

    async fn sweep(&self, _limit: usize) -> Result<usize, StoreError> {
        // Redis deletes expired records by itself, and searching for them would cost more than it saves.
        Ok(0)
    }
}
