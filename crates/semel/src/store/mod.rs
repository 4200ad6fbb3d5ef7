//! Where intents are stored: the [`Store`] trait and the stores that implement it.
//!
//! A store keeps one record per intent and changes it only as [`step`](crate::intent::state::step) says.
//! Each method below states its laws. [`conformance`](crate::conformance) has one test per law, and every store passes
//! them all.
//!
//! | module | what it has |
//! |---|---|
//! | `record`, `lineage`, `error` | the record of an intent; the identity of the data; errors and the request's fate |
//! | [`memory`], `sqlite`, `postgres`, `mysql`, `redis` | the stores |
//! | `tiered` | Redis in front of a SQL store: a cache of finished outcomes |
//! | `protect` | stored outcomes, compressed and encrypted |
//! | `coalesce`, `batch`, `queue`, `command` | a bounded queue; batches of requests of many callers in one trip |
//! | `connect_backoff` | backoff between connects to a server that is down |
//! | `locked_elsewhere` | the answer for a key that another open transaction has locked |
//! | `encoding` | how SQL stores encode a record |
//! | `cursor`, `pager` | where a page of a listing ends; how SQL stores fill one |
//! | `any`, `url` | a store chosen at run time, by its URL |
//! | `faulty` | fault injection, for tests (feature `fault-injection`) |

use std::future::Future;
use std::sync::Arc;

use crate::intent::fingerprint::Fingerprint;
use crate::intent::guard_expiry::KeyWindow;
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
#[cfg(feature = "_sql")]
mod command;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod connect_backoff;
mod cursor;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "redis"))]
#[cfg_attr(not(feature = "_sql"), allow(dead_code))]
pub(crate) mod encoding;
mod error;
#[cfg(feature = "fault-injection")]
pub mod faulty;
mod lineage;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod locked_elsewhere;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "_sql")]
mod pager;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod protect;
#[cfg(feature = "_sql")]
pub(crate) mod queue;
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
#[cfg(feature = "_sql")]
pub use url::{contract, plan_migration};

/// Most records one [`Store::list`] returns.
pub const PAGE_RECORDS_MAX: usize = 1_000;
/// Bytes of outcomes after which a page ends, however few records it has.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "redis"))]
const PAGE_OUTCOME_BYTES: u64 = 16 << 20;

/// A request to run an intent.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The intent.
    pub intent: Intent,
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// A token of this attempt alone.
    pub owner: Owner,
    /// What protects the effect.
    pub effect: Effect,
    /// The lease in ms: how long the claim is valid without a renewal.
    pub lease_ms: u64,
    /// How long the key protects a keyed effect.
    pub window: KeyWindow,
}

/// The answer to a [`Claim`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Claimed {
    /// Granted: run, renew, finish.
    Run(Ticket),
    /// The key was used for another request (fingerprint mismatch). Nothing of the first one is revealed.
    Mismatch,
    /// Another owner is running it.
    InFlight(Existing),
    /// It is finished; the record has the outcome.
    Replay(Existing),
    /// It is not known whether the effect happened.
    Uncertain(Existing),
}

/// The record a claim found.
#[derive(Clone, Debug)]
pub struct Existing {
    /// The record. Shared, because it is passed on several times before it is read.
    pub record: Arc<Record>,
    /// The store's clock when it was read.
    pub now: StoreTime,
    /// Its fingerprint was made with another recipe and could not be compared.
    pub other_recipe: bool,
}

/// A granted claim, for [`renew`](Store::renew) and [`finish`](Store::finish).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The intent.
    pub id: IntentId,
    /// The owner's token.
    pub owner: Owner,
    /// The fencing token: higher with each claim.
    pub epoch: Epoch,
    /// Attempt number, starting at 1.
    pub attempt: u32,
    /// When the lease ends.
    pub lease_until: StoreTime,
    /// Until when the downstream remembers the key; see [`Head::safe_until`](crate::intent::state::Head::safe_until).
    pub safe_until: Option<StoreTime>,
    /// A record made with another recipe was taken over.
    pub other_recipe: bool,
}

/// The outcome an owner records.
#[derive(Clone, Debug)]
pub struct Finish {
    /// How the attempt ended.
    pub verdict: Verdict,
    /// The outcome later callers get; a retryable failure or an uncertain end may have none.
    pub outcome: Option<Outcome>,
    /// How long it is kept.
    pub retention: Retention,
}

impl Finish {
    /// Gives the claim back: nothing was done, the same key may run at once.
    pub fn release(retention: Retention) -> Self {
        Self { verdict: Verdict::FailedRetryable, outcome: None, retention }
    }
}

impl Finish {
    /// The same with a smaller outcome: without the body, then without the headers, then without any.
    pub(crate) fn smaller(&self) -> Option<Self> {
        let outcome = self.outcome.as_ref()?.smaller();
        Some(Self { outcome, ..*self })
    }
}

/// The answer of [`renew`](Store::renew).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renewed {
    /// Renewed; the lease ends then.
    Until(StoreTime),
    /// The claim is lost: lapsed, taken over or decided.
    Stale,
}

/// The answer of [`finish`](Store::finish).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finished {
    /// Recorded.
    Recorded,
    /// This owner had already recorded an outcome with the same verdict; that one stands.
    Already,
    /// This owner had already recorded another verdict; that one stands, and this one is not stored.
    Other(State),
    /// The claim is lost; nothing was changed.
    Stale,
}

impl Finished {
    /// The answer to an owner that records `verdict`; `before` is the state the record was in.
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
    /// The epoch of the record the decision is based on.
    pub seen: Epoch,
    /// The decision itself.
    pub ruling: Ruling,
    /// The outcome later callers get, if the effect was applied.
    pub outcome: Option<Outcome>,
    /// How long it is kept.
    pub retention: Retention,
    /// Who decided; at most 200 bytes are kept.
    pub by: String,
    /// Why; at most 2,000 bytes are kept.
    pub why: String,
}

/// The answer of [`decide`](Store::decide).
#[derive(Clone, Debug)]
pub enum Decided {
    /// Recorded, with who and why.
    Recorded,
    /// The record has changed since it was read.
    Stale,
    /// This decision is not possible in the state the record is in.
    Refused(State),
}

/// Which records to list; empty means all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only in these states, as they hold now.
    pub states: Vec<State>,
    /// Only of this operation.
    pub operation: Option<String>,
    /// Only of this tenant, written as [`Scope::tenant_text`](crate::Scope::tenant_text) writes it.
    pub tenant: Option<String>,
    /// Only those whose state last changed at least this long ago, in ms.
    pub older_than_ms: Option<u64>,
    /// Only unfinished ones whose key may be forgotten downstream within this time, in ms, or is already
    /// ([`Head::safe_until`](crate::intent::state::Head::safe_until)).
    pub expiring_within_ms: Option<u64>,
    /// The cursor of the next page: the last page's [`Page::next`].
    pub after: Option<String>,
    /// At most this many; 0 and everything above means [`PAGE_RECORDS_MAX`].
    pub limit: usize,
}

impl Filter {
    /// How many records a page has at most.
    pub fn page_records(&self) -> usize {
        if self.limit == 0 { PAGE_RECORDS_MAX } else { self.limit.min(PAGE_RECORDS_MAX) }
    }

    /// The states that match.
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "redis"))]
    fn wanted_states(&self) -> &[State] {
        if self.states.is_empty() { &State::ALL } else { &self.states }
    }

    /// Whether only open records match: they are few, and every store finds them at once. A failed one whose key still
    /// protects is stored among them.
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "redis"))]
    fn only_open(&self) -> bool {
        self.expiring_within_ms.is_some() || self.wanted_states().iter().all(|state| !state.is_finished())
    }
}

/// A page of records, newest first.
#[derive(Clone, Debug)]
pub struct Page {
    /// The records.
    pub records: Vec<Record>,
    /// The cursor for [`Filter::after`]; `None` on the last page.
    pub next: Option<String>,
    /// The store's clock when they were read.
    pub now: StoreTime,
}

/// What a store can do beyond the laws that hold for all stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// Acknowledged writes survive a crash of the process and of the machine.
    pub durable: bool,
    /// Several processes may use it at once.
    pub shared: bool,
    /// A claim and business rows can share one commit.
    pub same_tx: bool,
}

/// Where intents are stored.
///
/// Laws of all methods:
/// 1. **The store's clock** decides leases and expiry; callers never pass a time.
/// 2. **Durable before acknowledged**, where [`Capabilities::durable`] says so.
/// 3. **Errors say what is known** ([`StoreError::fate`]). After an error every method may be called again with the
///    same arguments, also when its fate is in doubt: calling twice does no more than calling once.
/// 4. **Dropping a future** before it resolves leaves the request done or not done, as a lost connection would. It
///    never leaves half of it, and never blocks others.
pub trait Store: Send + Sync + 'static {
    /// What this store can do.
    fn capabilities(&self) -> Capabilities;

    /// The store's clock. It need not be right, but all users of one store see the same clock.
    fn now(&self) -> impl Future<Output = Result<StoreTime, StoreError>> + Send;

    /// Claims an intent, or says why it cannot be claimed.
    ///
    /// - Atomic: of any number of concurrent claims of one intent exactly one gets [`Claimed::Run`].
    /// - One round trip; a replay writes nothing.
    /// - Mismatch before in-flight before replay.
    /// - Each `Run` has an epoch higher than any before it in this store, released and swept ones included.
    /// - Claiming again with the same [`Claim::owner`] while the lease runs returns the same ticket, so a claim whose
    ///   answer was lost is settled by repeating it.
    /// - An opaque claim whose lease has expired is [`Claimed::Uncertain`], never `Run`.
    /// - The first keyed claim with a [`Claim::window`] stores until when the key protects. Later claims do not move that
    ///   time, and are [`Claimed::Uncertain`] when they would end after it.
    fn claim(&self, claim: Claim) -> impl Future<Output = Result<Claimed, StoreError>> + Send;

    /// Extends the lease from now. A lapsed or lost claim is [`Renewed::Stale`] and stays as it is.
    fn renew(
        &self,
        ticket: Ticket,
        lease_ms: u64,
    ) -> impl Future<Output = Result<Renewed, StoreError>> + Send;

    /// Records the outcome under owner and epoch.
    ///
    /// - A stale owner changes nothing and gets [`Finished::Stale`].
    /// - The lease does not matter: the last owner's late outcome is accepted until another claim or a decision.
    /// - The first outcome of an owner stands; an uncertain one may be made certain by the same owner.
    /// - Retention starts now; an uncertain record has none, and neither has a retryable failure whose key still counts.
    fn finish(
        &self,
        ticket: Ticket,
        finish: Finish,
    ) -> impl Future<Output = Result<Finished, StoreError>> + Send;

    /// The record, unless there is none or it has expired. Writes nothing.
    fn get(&self, id: IntentId) -> impl Future<Output = Result<Option<Record>, StoreError>> + Send;

    /// Lists records for people, newest first, a bounded page at a time. Expired ones are not shown. Reading page after
    /// page shows every record that existed all along exactly once.
    fn list(&self, filter: Filter) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Records the decision of a person or a lookup, with who and why, under a fresh epoch: from then on the last owner
    /// is stale. A claim whose lease runs cannot be overridden.
    fn decide(
        &self,
        id: IntentId,
        decide: Decide,
    ) -> impl Future<Output = Result<Decided, StoreError>> + Send;

    /// Deletes up to `limit` expired records (retention) and returns how many. In progress and uncertain ones stay,
    /// however old. Claims go on meanwhile. A store that expires records by itself has nothing to do and returns 0.
    fn sweep(&self, limit: usize) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// As [`claim`](Self::claim), but a replay comes from the authority itself, never from a cache in front of it.
    /// Stores without a cache do the same for both.
    fn claim_verified(&self, claim: Claim) -> impl Future<Output = Result<Claimed, StoreError>> + Send {
        self.claim(claim)
    }

    /// As [`get`](Self::get), for callers that replay a finished outcome: a cache in front of the authority may answer,
    /// as it may for [`claim`](Self::claim). Stores without a cache do the same for both.
    fn get_cached(&self, id: IntentId) -> impl Future<Output = Result<Option<Record>, StoreError>> + Send {
        self.get(id)
    }

    /// The identity of this store's data: what was kept elsewhere under another lineage is not about this data.
    /// `None` if the store has none.
    fn lineage(&self) -> impl Future<Output = Result<Option<Lineage>, StoreError>> + Send {
        std::future::ready(Ok(None))
    }

    /// How stored outcomes are protected: an outcome that a caller writes into the same tables in its own transaction
    /// has to be protected the same way. Plain stores do not protect; a wrapper returns its store's protection.
    fn protection(&self) -> Protection {
        Protection::none()
    }
}
