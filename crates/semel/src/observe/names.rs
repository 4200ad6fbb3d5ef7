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
/// Bytes of request bodies that a layer holds.
pub const HTTP_BUFFERED: &str = "semel_http_buffered_bytes";
/// Requests refused because as many are held as may be.
pub const HTTP_BUFFER_REFUSED: &str = "semel_http_buffer_refused";
/// Looks into the cache in front of a store: `result`.
pub const CACHE: &str = "semel_cache";
/// Outcomes on their way into the cache: `result`.
pub const CACHE_FILL: &str = "semel_cache_fill";
/// Duplicates that did not run: `rail`.
pub const SUPPRESSED: &str = "semel_duplicates_suppressed";

/// Events of a relay by what became of them: `outcome` is `confirmed`, `failed` (counted at each try), `parked` or `held`.
pub const RELAY_EVENTS: &str = "semel_relay_events";
/// Events in a batch of a relay's.
pub const RELAY_BATCH: &str = "semel_relay_batch_events";
/// How long one call to a relay's sink took.
pub const RELAY_PUBLISH: &str = "semel_relay_publish_seconds";
/// Events a relay has before it, parked ones not counted. Counting stops at 10,000.
pub const RELAY_UNPUBLISHED: &str = "semel_relay_unpublished_events";
/// For how long the oldest of them waits.
pub const RELAY_OLDEST: &str = "semel_relay_unpublished_oldest_seconds";
/// Parked and held events of the outbox. Counting stops at 10,000.
pub const RELAY_PARKED: &str = "semel_relay_parked_events";
/// Lanes that a relay owns.
pub const RELAY_LANES: &str = "semel_relay_lanes";
/// The highest epoch under which it owns one.
pub const RELAY_EPOCH: &str = "semel_relay_owner_epoch";
/// What the server keeps for a relay that has not confirmed it yet.
pub const RELAY_SLOT_LAG: &str = "semel_relay_slot_lag_bytes";
/// When a relay last got something done: a batch settled, or nothing there to settle. Seconds since 1970.
pub const RELAY_SUCCESS: &str = "semel_relay_last_success_timestamp_seconds";
/// Failures of a relay: `side` is `source` or `sink`.
pub const RELAY_ERRORS: &str = "semel_relay_errors";

/// Messages of a consumer by what became of them: `outcome` is `done`, `already` (handled before), `retried` (counted at each
/// failure that is tried again), `failed`
/// (each failure, whatever came of it), `dead` or `lost` (given to another consumer).
pub const CONSUMER_MESSAGES: &str = "semel_consumer_messages";
/// Messages in one call to a consumer's handler.
pub const CONSUMER_BATCH: &str = "semel_consumer_batch_messages";
/// How long one call to a consumer's handler took.
pub const CONSUMER_HANDLE: &str = "semel_consumer_handle_seconds";
/// How often a message was tried until it was done or dead.
pub const CONSUMER_ATTEMPTS: &str = "semel_consumer_attempts";
/// Messages a consumer has received and not settled.
pub const CONSUMER_HELD: &str = "semel_consumer_held_messages";
/// For how long the oldest of them is held.
pub const CONSUMER_OLDEST: &str = "semel_consumer_held_oldest_seconds";
/// Dead letters that were handled again: `outcome` is `handled` or `failed`.
pub const CONSUMER_LETTERS: &str = "semel_consumer_letters";
/// Marks that were older than the window and are forgotten.
pub const CONSUMER_FORGOTTEN: &str = "semel_consumer_forgotten_marks";
/// How long marks are kept.
pub const CONSUMER_WINDOW: &str = "semel_consumer_window_seconds";
/// How long the source keeps messages, where it tells.
pub const CONSUMER_RETENTION: &str = "semel_consumer_retention_seconds";
/// Failures of a consumer's source.
pub const CONSUMER_ERRORS: &str = "semel_consumer_source_errors";
/// When a consumer last did all there was to do, also where that was nothing. Seconds since 1970.
pub const CONSUMER_SUCCESS: &str = "semel_consumer_last_success_timestamp_seconds";

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
/// A batch of a relay's, from the source until each of its events is settled.
pub const SPAN_RELAY_BATCH: &str = "relay.batch";
/// One event in one call to the sink. `trace_parent` is the trace context of the transaction that appended it.
pub const SPAN_RELAY_PUBLISH: &str = "relay.publish";
/// One call to a consumer's handler.
pub const SPAN_CONSUMER_HANDLE: &str = "consumer.handle";
/// One message in one call to a consumer's handler. `trace_parent` is the trace context it was published under.
pub const SPAN_CONSUMER_MESSAGE: &str = "consumer.message";
