//! Where intents are remembered: the [`Store`] seam and the stores behind it.
//!
//! A store keeps one record per intent and changes it only as [`step`](crate::intent::state::step) says.
//! Each method below states its laws; [`conformance`](crate::conformance) has one test per law, and every
//! store passes them all.
//!
//! | module | what it decides |
//! |---|---|
//! | `record`, `lineage`, `error` | what is remembered of an intent; which data this is; what an error says about the request's fate |
//! | [`memory`], `sqlite`, `postgres`, `mysql`, `redis` | the stores |
//! | `tiered` | Redis in front of a SQL store: a cache of finished outcomes |
//! | `protect` | stored outcomes compressed and sealed |
//! | `coalesce`, `batch`, `queue`, `command` | requests of many callers in one round trip; the bounded queue in front |
//! | `connect_backoff` | a server that is down is not waited for by everybody: connect backoff |
//! | `locked_elsewhere` | a key that an open transaction holds |
//! | `encoding` | how SQL stores encode a record |
//! | `any`, `url` | a store chosen at run time, by its URL |
//! | `faulty` | a store that misbehaves on demand, for tests |

use std::future::Future;
use std::sync::Arc;

use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::{Epoch, Intent, IntentId, Owner};
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::{Effect, Retention, StoreTime};
use crate::intent::state::{Ruling, State, StepAnswer};
use crate::store::protect::Protection;

mod any;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod batch;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod coalesce;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod command;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod connect_backoff;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "redis"))]
#[cfg_attr(not(any(feature = "sqlite", feature = "postgres", feature = "mysql")), allow(dead_code))]
pub(crate) mod encoding;
mod error;
#[cfg(feature = "conformance")]
pub mod faulty;
mod lineage;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod locked_elsewhere;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod protect;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod queue;
mod record;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "redis")]
pub mod tiered;
mod url;

pub use any::AnyStore;
pub use error::{ErrorKind, Fate, StoreError};
pub use lineage::Lineage;
pub use record::{Decision, Record};
pub use url::{Migrated, migrate, new_lineage, open, open_existing, schema};
#[cfg(feature = "redis")]
pub use url::{behind_cache, open_tiered};

/// Most records one [`Store::list`] returns.
pub const PAGE_RECORDS_MAX: usize = 1_000;

/// A wish to run an intent.
#[derive(Clone, Debug)]
pub struct Claim {
    /// What.
    pub intent: Intent,
    /// Asked for how.
    pub fingerprint: Fingerprint,
    /// By whom: a token of this attempt's own.
    pub owner: Owner,
    /// What protects the effect.
    pub effect: Effect,
    /// How long the owner is believed alive without renewing, in ms.
    pub lease_ms: u64,
}

/// What a [`Claim`] got.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Claimed {
    /// It is yours: run, renew, finish.
    Run(Ticket),
    /// The key belongs to another request. Nothing of the first one is revealed.
    Mismatch,
    /// Somebody is at it.
    InFlight(Existing),
    /// It is finished; here is the outcome.
    Replay(Existing),
    /// Nobody knows whether it happened.
    Uncertain(Existing),
}

/// The record a claim ran into.
#[derive(Clone, Debug)]
pub struct Existing {
    /// The record. Shared, because it is handed on several times before anybody looks into it.
    pub record: Arc<Record>,
    /// The store's clock when it was looked at.
    pub now: StoreTime,
    /// Its fingerprint was made with another recipe and could not be compared.
    pub other_recipe: bool,
}

/// The right to run: what [`renew`](Store::renew) and [`finish`](Store::finish) are asked with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// Which intent.
    pub id: IntentId,
    /// Whose claim.
    pub owner: Owner,
    /// The fence.
    pub epoch: Epoch,
    /// How many times the intent was claimed, this time included.
    pub attempt: u32,
    /// Until when the lease runs.
    pub lease_until: StoreTime,
    /// A record made with another recipe was taken over.
    pub other_recipe: bool,
}

/// The outcome an owner brings.
#[derive(Clone, Debug)]
pub struct Finish {
    /// How it ended.
    pub verdict: Verdict,
    /// What later callers get; a retryable failure or an uncertain end may have none.
    pub outcome: Option<Outcome>,
    /// How long it is remembered.
    pub retention: Retention,
}

impl Finish {
    /// The claim is given back: nothing was done, the same key may run at once.
    pub fn release(retention: Retention) -> Self {
        Self { verdict: Verdict::FailedRetryable, outcome: None, retention }
    }
}

impl Finish {
    /// The same with less of its outcome: without the body, then without the headers, then without any.
    pub(crate) fn smaller(&self) -> Option<Self> {
        let outcome = self.outcome.as_ref()?.smaller();
        Some(Self { outcome, ..*self })
    }
}

/// What [`renew`](Store::renew) said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renewed {
    /// The lease runs until then.
    Until(StoreTime),
    /// The claim is lost: lapsed, taken over or decided.
    Stale,
}

/// What [`finish`](Store::finish) said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finished {
    /// Recorded.
    Recorded,
    /// This very owner had recorded an outcome with the same verdict before; that one stands.
    Already,
    /// This very owner had recorded another verdict before; that one stands, and this one is not stored.
    Other(State),
    /// The claim is lost; nothing was changed.
    Stale,
}

impl Finished {
    /// The answer to an owner that brings `verdict`; `before` is the state its record was in.
    pub(crate) fn new(answer: StepAnswer, verdict: Verdict, before: State) -> Self {
        match answer {
            StepAnswer::Done => Self::Recorded,
            StepAnswer::Already if before == State::from(verdict) => Self::Already,
            StepAnswer::Already => Self::Other(before),
            _ => Self::Stale,
        }
    }
}

/// A person's or a lookup's decision about an intent.
#[derive(Clone, Debug)]
pub struct Decide {
    /// The epoch of the record that was looked at.
    pub seen: Epoch,
    /// What was found.
    pub ruling: Ruling,
    /// What later callers get, where it was applied.
    pub outcome: Option<Outcome>,
    /// How long it is remembered.
    pub retention: Retention,
    /// Who decided; at most 200 bytes are kept.
    pub by: String,
    /// Why; at most 2,000 bytes are kept.
    pub why: String,
}

/// What [`decide`](Store::decide) said.
#[derive(Clone, Debug)]
pub enum Decided {
    /// Recorded, with who and why.
    Recorded,
    /// The record is not the one that was looked at any more.
    Stale,
    /// It cannot be decided that way in the state it is in.
    Refused(State),
}

/// Which records to list; empty means all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only in these states, as they hold now.
    pub states: Vec<State>,
    /// Only of this operation.
    pub operation: Option<String>,
    /// Only of this tenant, as [`Scope::tenant_text`](crate::Scope::tenant_text) spells it.
    pub tenant: Option<String>,
    /// Only those whose state last changed at least this long ago, in ms.
    pub older_than_ms: Option<u64>,
    /// Where the page before ended.
    pub after: Option<String>,
    /// At most this many; 0 and everything beyond is [`PAGE_RECORDS_MAX`].
    pub limit: usize,
}

impl Filter {
    /// How many records a page has at most.
    pub fn page_records(&self) -> usize {
        if self.limit == 0 { PAGE_RECORDS_MAX } else { self.limit.min(PAGE_RECORDS_MAX) }
    }
}

/// A page of records, newest first.
#[derive(Clone, Debug)]
pub struct Page {
    /// The records.
    pub records: Vec<Record>,
    /// For [`Filter::after`]; `None` on the last page.
    pub next: Option<String>,
    /// The store's clock when they were read.
    pub now: StoreTime,
}

/// What a store can do beyond the laws all stores keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// What was acknowledged survives a crash of the process and of the machine.
    pub durable: bool,
    /// Several processes may use it at once.
    pub shared: bool,
    /// Claim and business rows can be one commit.
    pub same_tx: bool,
}

/// Where intents are remembered.
///
/// Laws of the whole seam:
/// 1. **The store's clock** judges leases and expiry; callers never pass a time.
/// 2. **Durable before acknowledged**, where [`Capabilities::durable`] says so.
/// 3. **Errors say what is known** ([`StoreError::fate`]). Every method may be asked again after an error
///    with the same arguments, also when its fate is in doubt: asking twice does no more than asking once.
/// 4. **Dropping a future** before it resolves leaves the request either done or not done, as a lost
///    connection would; it never leaves half of it, and never blocks others.
pub trait Store: Send + Sync + 'static {
    /// What this store can do.
    fn capabilities(&self) -> Capabilities;

    /// The store's clock. It need not be right, but all users of one store see the same one.
    fn now(&self) -> impl Future<Output = Result<StoreTime, StoreError>> + Send;

    /// Claims an intent, or says what stands in the way.
    ///
    /// - Atomic: of any number of concurrent claims for one intent exactly one gets [`Claimed::Run`].
    /// - One round trip; a replay writes nothing.
    /// - Mismatch before in-flight before replay.
    /// - Each `Run` has an epoch higher than any before it in this store, released and swept ones included.
    /// - Asking again with the same [`Claim::owner`] while the lease runs returns the same ticket, so a
    ///   claim whose answer was lost is settled by repeating it.
    /// - An opaque claim whose lease ran out is [`Claimed::Uncertain`], never `Run`.
    fn claim(&self, claim: Claim) -> impl Future<Output = Result<Claimed, StoreError>> + Send;

    /// Extends the lease from now. A lapsed or lost claim is [`Renewed::Stale`] and stays as it is.
    fn renew(
        &self,
        ticket: Ticket,
        lease_ms: u64,
    ) -> impl Future<Output = Result<Renewed, StoreError>> + Send;

    /// Records the outcome under owner and epoch.
    ///
    /// - A stale owner changes nothing and is told so.
    /// - The lease does not matter: the last owner's late outcome is taken until somebody else claimed or decided.
    /// - The first outcome of an owner stands; an uncertain one may be made certain by the same owner.
    /// - Retention starts now; an uncertain record has none.
    fn finish(
        &self,
        ticket: Ticket,
        finish: Finish,
    ) -> impl Future<Output = Result<Finished, StoreError>> + Send;

    /// The record, unless there is none or it has expired. Writes nothing.
    fn get(&self, id: IntentId) -> impl Future<Output = Result<Option<Record>, StoreError>> + Send;

    /// Records for people, newest first, a bounded page at a time. Expired ones are not shown. Walking the
    /// pages shows every record that was there all along exactly once.
    fn list(&self, filter: Filter) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Records what a person or a lookup found out, with who and why, under a fresh epoch: from then on the
    /// last owner is stale. A live claim cannot be decided over.
    fn decide(
        &self,
        id: IntentId,
        decide: Decide,
    ) -> impl Future<Output = Result<Decided, StoreError>> + Send;

    /// Forgets up to `limit` expired records and returns how many. In progress and uncertain ones stay,
    /// however old. Claims go on meanwhile. A store that forgets by itself has nothing to do and says 0.
    fn sweep(&self, limit: usize) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// As [`claim`](Self::claim), and a replay comes from the authority itself, never from a cache in front of
    /// it. Stores without one do the same for both.
    fn claim_verified(&self, claim: Claim) -> impl Future<Output = Result<Claimed, StoreError>> + Send {
        self.claim(claim)
    }

    /// As [`get`](Self::get), for whoever would replay what is finished: a cache in front of the authority may
    /// answer, as it may for [`claim`](Self::claim). Stores without one do the same for both.
    fn look(&self, id: IntentId) -> impl Future<Output = Result<Option<Record>, StoreError>> + Send {
        self.get(id)
    }

    /// Which data this is: whatever was remembered elsewhere about another lineage is not about this store.
    /// `None` where the store has no such thing.
    fn lineage(&self) -> impl Future<Output = Result<Option<Lineage>, StoreError>> + Send {
        std::future::ready(Ok(None))
    }

    /// How what is stored here is protected: an outcome that goes past this store into the same tables, in a
    /// transaction of the caller's own, has to be protected alike. Stores themselves do not; one that stands around
    /// another says what that one does.
    fn protection(&self) -> Protection {
        Protection::none()
    }
}
