//! Every metric, span and attribute name.
//!
//! Counters are exported with `_total` behind their name.

/// Claims by what they got: `operation`, `status`.
pub const CLAIM: &str = "idempotency_claim";
/// Claims that ran into a record: `operation`, `state`.
pub const EXISTING: &str = "idempotency_existing";
/// Stored outcomes given again: `operation`.
pub const REPLAY: &str = "idempotency_replay";
/// Keys used again for another request: `operation`.
pub const CONFLICT: &str = "idempotency_conflict";
/// Callers told that somebody is at it: `operation`.
pub const IN_PROGRESS: &str = "idempotency_in_progress";
/// Lookups of uncertain intents: `operation`, `status`.
pub const RECOVERY: &str = "idempotency_recovery";
/// Uncertain intents that nobody could find out about when the reconcile loop last passed: `operation`.
pub const HELD: &str = "idempotency_held";
/// How long the longest held of them is held already: `operation`.
pub const HELD_OLDEST: &str = "idempotency_held_oldest_seconds";
/// Records forgotten because their retention was over.
pub const SWEPT: &str = "semel_swept";
/// Age of the record a claim ran into: `operation`, `state`.
pub const RECORD_AGE: &str = "idempotency_record_age_seconds";
/// Outcomes brought to the store: `operation`, `status`.
pub const FINALIZE: &str = "idempotency_finalize";
/// Requests to the store that failed: `operation`, `phase`.
pub const STORE_ERROR: &str = "idempotency_store_error";
/// Runs without a claim: `operation`.
pub const UNGUARDED: &str = "idempotency_unguarded";
/// Records whose fingerprint could not be compared: `operation`.
pub const OTHER_RECIPE: &str = "idempotency_other_recipe";
/// Claims lost while the work went on: `operation`.
pub const LEASE_LOST: &str = "idempotency_lease_lost";
/// Work under way in this process: `operation`.
pub const RUNNING: &str = "idempotency_running";
/// Events claimed by a consumer: `consumer`, `status`. For the inbox.
pub const DEDUP_CLAIM: &str = "dedup_claim";
/// Events a consumer had seen before: `consumer`, `event_type`. For the inbox.
pub const DEDUP_DUPLICATE: &str = "dedup_duplicate";
/// Webhooks by what became of them: `provider`, `result`.
pub const WEBHOOK: &str = "semel_webhook";
/// Looks into the cache in front of a store: `result`.
pub const CACHE: &str = "semel_cache";
/// Outcomes on their way into the cache: `result`.
pub const CACHE_FILL: &str = "semel_cache_fill";
/// Duplicates that did not run: `rail`.
pub const SUPPRESSED: &str = "semel_duplicates_suppressed";

/// The rail of requests and function calls.
pub const RAIL_EDGE: &str = "edge";
/// The rail of webhooks that were received.
pub const RAIL_WEBHOOK: &str = "webhook";

/// Asking the store for the right to run.
pub const SPAN_CLAIM: &str = "idempotency.claim";
/// The work itself.
pub const SPAN_RUN: &str = "idempotency.run";
/// Recording the outcome.
pub const SPAN_FINISH: &str = "idempotency.finish";
/// One run of the reconcile loop.
pub const SPAN_RECONCILE: &str = "idempotency.reconcile";
/// Finding out about an uncertain intent.
pub const SPAN_LOOKUP: &str = "idempotency.lookup";
