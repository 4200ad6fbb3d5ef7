//! Every metric, label, span and attribute name.
//!
//! Counters are exported with the suffix `_total`.

/// Claims by result: `operation`, `status`.
pub const CLAIM: &str = "idempotency_claim";
/// Claims that found a record: `operation`, `state`.
pub const EXISTING: &str = "idempotency_existing";
/// Stored outcomes replayed: `operation`.
pub const REPLAY: &str = "idempotency_replay";
/// Keys reused for another request: `operation`.
pub const CONFLICT: &str = "idempotency_conflict";
/// Calls answered "in progress" because another attempt is running: `operation`.
pub const IN_PROGRESS: &str = "idempotency_in_progress";
/// Lookups of uncertain intents: `operation`, `status`.
pub const RECOVERY: &str = "idempotency_recovery";
/// Uncertain intents that the last reconcile pass could not resolve: `operation`.
pub const HELD: &str = "idempotency_held";
/// How long the oldest of them has been held: `operation`.
pub const HELD_OLDEST: &str = "idempotency_held_oldest_seconds";
/// Attempts that were refused because the downstream may have forgotten the key (guard expiry): `operation`.
pub const GUARD_EXPIRED: &str = "idempotency_guard_expired";
/// Unfinished intents without an owner at work whose key the downstream may forget soon, or may have forgotten: `operation`.
pub const GUARD_EXPIRING: &str = "idempotency_guard_expiring";
/// Records deleted because their retention was over.
pub const SWEPT: &str = "semel_swept";
/// Age of the record a claim found: `operation`, `state`.
pub const RECORD_AGE: &str = "idempotency_record_age_seconds";
/// Outcomes written to the store: `operation`, `status`.
pub const FINALIZE: &str = "idempotency_finalize";
/// Requests to the store that failed: `operation`, `phase`.
pub const STORE_ERROR: &str = "idempotency_store_error";
/// Runs without a claim: `operation`.
pub const UNGUARDED: &str = "idempotency_unguarded";
/// Records whose fingerprint could not be compared: `operation`.
pub const OTHER_RECIPE: &str = "idempotency_other_recipe";
/// Claims lost while the work was running: `operation`.
pub const LEASE_LOST: &str = "idempotency_lease_lost";
/// Work running in this process: `operation`.
pub const RUNNING: &str = "idempotency_running";
/// Events claimed by a consumer: `consumer`, `status`. For the inbox.
pub const DEDUP_CLAIM: &str = "dedup_claim";
/// Events a consumer had handled before: `consumer`, `event_type`. For the inbox.
pub const DEDUP_DUPLICATE: &str = "dedup_duplicate";
/// Webhooks by result: `provider`, `result`.
pub const WEBHOOK: &str = "semel_webhook";
/// Bytes of request bodies that a layer buffers.
pub const HTTP_BUFFERED: &str = "semel_http_buffered_bytes";
/// Requests refused because the limit of buffered bodies was reached.
pub const HTTP_BUFFER_REFUSED: &str = "semel_http_buffer_refused";
/// Lookups in the cache in front of a store: `result`.
pub const CACHE: &str = "semel_cache";
/// Outcomes on their way into the cache: `result`.
pub const CACHE_FILL: &str = "semel_cache_fill";
/// Duplicates that did not run: `rail`.
pub const SUPPRESSED: &str = "semel_duplicates_suppressed";

/// Relay events: `outcome` is `confirmed`, `failed` (counted at each attempt), `parked` or `held`.
pub const RELAY_EVENTS: &str = "semel_relay_events";
/// Events per relay batch.
pub const RELAY_BATCH: &str = "semel_relay_batch_events";
/// Duration of one call to a relay's sink.
pub const RELAY_PUBLISH: &str = "semel_relay_publish_seconds";
/// Backlog of a relay: unpublished events, parked ones not counted. Counting stops at 10,000.
pub const RELAY_UNPUBLISHED: &str = "semel_relay_unpublished_events";
/// How long the oldest of them has waited.
pub const RELAY_OLDEST: &str = "semel_relay_unpublished_oldest_seconds";
/// Parked and held events of the outbox. Counting stops at 10,000.
pub const RELAY_PARKED: &str = "semel_relay_parked_events";
/// Outbox partitions that a relay owns.
pub const RELAY_PARTITIONS: &str = "semel_relay_lanes";
/// The highest epoch under which it owns one.
pub const RELAY_EPOCH: &str = "semel_relay_owner_epoch";
/// Replication slot lag: what the server retains for a relay that has not confirmed it yet.
pub const RELAY_SLOT_LAG: &str = "semel_relay_slot_lag_bytes";
/// When a relay last made progress: a batch settled, or nothing to settle. Seconds since 1970.
pub const RELAY_SUCCESS: &str = "semel_relay_last_success_timestamp_seconds";
/// Failures of a relay: `side` is `source` or `sink`.
pub const RELAY_ERRORS: &str = "semel_relay_errors";

/// Consumer messages: `outcome` is `done`, `already` (handled before), `retried` (each failure that is retried),
/// `failed` (each failure, whatever follows), `dead` (dead-lettered) or `lost` (given to another consumer).
pub const CONSUMER_MESSAGES: &str = "semel_consumer_messages";
/// Messages per call to a consumer's handler.
pub const CONSUMER_BATCH: &str = "semel_consumer_batch_messages";
/// Duration of one call to a consumer's handler.
pub const CONSUMER_HANDLE: &str = "semel_consumer_handle_seconds";
/// Attempts until a message was done or dead.
pub const CONSUMER_ATTEMPTS: &str = "semel_consumer_attempts";
/// Messages in flight: a consumer has received and not settled them.
pub const CONSUMER_HELD: &str = "semel_consumer_held_messages";
/// How long the oldest of them has been in flight.
pub const CONSUMER_OLDEST: &str = "semel_consumer_held_oldest_seconds";
/// Dead letters that were redelivered: `outcome` is `handled` or `failed`.
pub const CONSUMER_LETTERS: &str = "semel_consumer_letters";
/// Dedup marks deleted because they were older than the window.
pub const CONSUMER_FORGOTTEN: &str = "semel_consumer_forgotten_marks";
/// The dedup window: how long marks are kept.
pub const CONSUMER_WINDOW: &str = "semel_consumer_window_seconds";
/// Retention of the source, where it reports one.
pub const CONSUMER_RETENTION: &str = "semel_consumer_retention_seconds";
/// Failures of a consumer's source.
pub const CONSUMER_ERRORS: &str = "semel_consumer_source_errors";
/// When a consumer last finished all available work, even if there was none. Seconds since 1970.
pub const CONSUMER_SUCCESS: &str = "semel_consumer_last_success_timestamp_seconds";

/// Sagas started: `saga`.
pub const SAGA_STARTED: &str = "semel_saga_started";
/// Sagas that ended: `saga`, `status`.
pub const SAGA_ENDED: &str = "semel_saga_ended";
/// Times that a saga was parked: `saga`, `reason`.
pub const SAGA_PARKED: &str = "semel_saga_parked";
/// Calls of steps by result: `saga`, `step`, `op`, `result`.
pub const SAGA_STEPS: &str = "semel_saga_steps";
/// Calls of steps that had to wait because as many of their kind were under way as may be: `step`.
pub const SAGA_STEP_WAITS: &str = "semel_saga_step_waits";
/// Attempts that were not made because the participant's key may protect them no longer: `saga`, `step`.
pub const SAGA_GUARD_EXPIRED: &str = "semel_saga_guard_expired";
/// Sagas taken from a worker whose lease had ended: `saga`.
pub const SAGA_TAKEOVERS: &str = "semel_saga_takeovers";
/// Leases that this process lost as a worker of sagas.
pub const SAGA_LEASES_LOST: &str = "semel_saga_leases_lost";
/// Sagas at work in this process.
pub const SAGA_AT_WORK: &str = "semel_saga_at_work";
/// Sagas in the journal that have not ended: `status`. Counting stops at 10,000 of each.
pub const SAGA_OPEN: &str = "semel_saga_open";
/// Age of the oldest saga that is parked.
pub const SAGA_PARKED_OLDEST: &str = "semel_saga_parked_oldest_seconds";
/// Sagas that no worker took within a lease, for whatever reason. Counting stops at 10,000 of each definition.
pub const SAGA_OVERDUE: &str = "semel_saga_overdue";
/// Sagas of other definitions than this process has that no worker took within a lease. Counting stops at 10,000.
pub const SAGA_NO_DEFINITION: &str = "semel_saga_no_definition";

/// Label: the name of the operation.
pub const LABEL_OPERATION: &str = "operation";
/// Label: the result of a claim, a finish or a lookup.
pub const LABEL_STATUS: &str = "status";
/// Label: the state of the record that was found.
pub const LABEL_STATE: &str = "state";
/// Label: which request to the store failed.
pub const LABEL_PHASE: &str = "phase";
/// Label: the rail, one of [`RAIL_EDGE`], [`RAIL_WEBHOOK`] and [`RAIL_WORKFLOW`].
pub const LABEL_RAIL: &str = "rail";
/// Label: who sends the webhooks.
pub const LABEL_PROVIDER: &str = "provider";
/// Label: the result of a webhook, of a cache lookup or of a step's call.
pub const LABEL_RESULT: &str = "result";
/// Label: what became of an event, a message or a dead letter.
pub const LABEL_OUTCOME: &str = "outcome";
/// Label: the side of a relay that failed.
pub const LABEL_SIDE: &str = "side";

/// Label: the name of a saga's definition.
pub const LABEL_SAGA: &str = "saga";
/// Label: the name of a saga's step.
pub const LABEL_STEP: &str = "step";
/// Label: what of a step was called: `forward`, `pivot`, `undo` or `lookup`.
pub const LABEL_OP: &str = "op";
/// Label: why a saga is parked.
pub const LABEL_REASON: &str = "reason";

/// The rail of requests and function calls.
pub const RAIL_EDGE: &str = "edge";
/// The rail of webhooks that were received.
pub const RAIL_WEBHOOK: &str = "webhook";

/// The rail of sagas: a saga that its key has already, and a step that the journal answers for after a takeover.
pub const RAIL_WORKFLOW: &str = "workflow";

/// Asking the store for the right to run.
pub const SPAN_CLAIM: &str = "idempotency.claim";
/// The work itself.
pub const SPAN_RUN: &str = "idempotency.run";
/// Recording the outcome.
pub const SPAN_FINISH: &str = "idempotency.finish";
/// One run of the reconcile loop.
pub const SPAN_RECONCILE: &str = "idempotency.reconcile";
/// Looking up an uncertain intent.
pub const SPAN_LOOKUP: &str = "idempotency.lookup";
/// A relay batch, from the source until each of its events is settled.
pub const SPAN_RELAY_BATCH: &str = "relay.batch";
/// One event in one call to the sink. `trace_parent` is the trace context of the transaction that appended it.
pub const SPAN_RELAY_PUBLISH: &str = "relay.publish";
/// One call to a consumer's handler.
pub const SPAN_CONSUMER_HANDLE: &str = "consumer.handle";
/// One message in one call to a consumer's handler. `trace_parent` is the trace context it was published under.
pub const SPAN_CONSUMER_MESSAGE: &str = "consumer.message";
/// One run of a saga in one process, until it ends or waits.
pub const SPAN_SAGA_RUN: &str = "saga.run";
/// One call of a step, of its undo or of its lookup.
pub const SPAN_SAGA_STEP: &str = "saga.step";
