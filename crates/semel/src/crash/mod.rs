//! Named crash points on both sides of every step of the flow, where a test stops or kills the process.
//!
//! Without the feature `crash-points` a point compiles to nothing.

#[cfg(not(feature = "crash-points"))]
mod off;
#[cfg(feature = "crash-points")]
mod on;

#[cfg(not(feature = "crash-points"))]
pub(crate) use off::point;
#[cfg(feature = "crash-points")]
pub use on::point;

/// Before the store is asked for the claim.
pub const BEFORE_CLAIM: &str = "before_claim";
/// The claim is ours; nothing else has happened.
pub const AFTER_CLAIM: &str = "after_claim";
/// Just before the work starts.
pub const BEFORE_EFFECT: &str = "before_effect";
/// The work has returned.
pub const AFTER_EFFECT: &str = "after_effect";
/// Just before the outcome goes to the store.
pub const BEFORE_FINISH: &str = "before_finish";
/// The store has the outcome.
pub const AFTER_FINISH: &str = "after_finish";
/// Just before the caller gets the answer.
pub const BEFORE_ANSWER: &str = "before_answer";
/// The caller's transaction is written; its commit is next. The caller's own point.
pub const BEFORE_COMMIT: &str = "before_commit";
/// The caller's transaction is committed; no answer has been sent. The caller's own point.
pub const AFTER_COMMIT: &str = "after_commit";
/// A broker has the events and the position of a transaction; they are not committed yet.
pub const BEFORE_SINK_COMMIT: &str = "before_sink_commit";
/// A broker has committed events and position; the relay has not recorded it.
pub const AFTER_SINK_COMMIT: &str = "after_sink_commit";

/// A relay owns its source and is about to take over the sink.
pub const BEFORE_BEGIN: &str = "before_begin";
/// A relay has taken over the sink and knows its position.
pub const AFTER_BEGIN: &str = "after_begin";
/// A relay has recorded a batch; nothing of it is sent.
pub const BEFORE_PUBLISH: &str = "before_publish";
/// The sink has answered for one round of a batch; the source does not know it yet.
pub const AFTER_PUBLISH: &str = "after_publish";
/// Everything of a batch is settled; the ack to the source is next.
pub const BEFORE_DONE: &str = "before_done";
/// The source has recorded that a batch is done.
pub const AFTER_DONE: &str = "after_done";

/// Before a consumer marks a message in its transaction.
pub const BEFORE_MARK: &str = "before_mark";
/// The message is marked; its effect has not begun.
pub const AFTER_MARK: &str = "after_mark";
/// The effect is done, in the transaction of the mark.
pub const AFTER_HANDLED: &str = "after_handled";

/// A consumer's batch is handled; it is not acked to the broker.
pub const BEFORE_ACK: &str = "before_ack";
/// The batch is acked to the broker.
pub const AFTER_ACK: &str = "after_ack";

/// A pipeline has messages; they are not transformed yet.
pub const BEFORE_TRANSFORM: &str = "before_transform";
/// A pipeline knows its outputs; no transaction has begun.
pub const AFTER_TRANSFORM: &str = "after_transform";
/// The outputs are being sent in a transaction that does not have the offsets.
pub const BEFORE_OFFSETS: &str = "before_offsets";
/// The transaction has the offsets; it is not committed.
pub const AFTER_OFFSETS: &str = "after_offsets";

/// All points of a pipeline, in the order of the flow.
pub const IN_PIPELINE: [&str; 6] =
    [BEFORE_TRANSFORM, AFTER_TRANSFORM, BEFORE_OFFSETS, AFTER_OFFSETS, BEFORE_SINK_COMMIT, AFTER_SINK_COMMIT];

/// A saga is in the journal; none of its steps has begun.
pub const AFTER_SAGA_START: &str = "after_saga_start";
/// Just before a saga's progress goes to the journal: what begins, what is done, or how the saga goes on.
pub const BEFORE_SAGA_WRITE: &str = "before_saga_write";
/// The journal has a saga's progress.
pub const AFTER_SAGA_WRITE: &str = "after_saga_write";
/// A step, an undo or a lookup has returned; the journal does not know it.
pub const AFTER_SAGA_CALL: &str = "after_saga_call";
/// Just before the transaction of an atomic step.
pub const BEFORE_SAGA_ATOMIC: &str = "before_saga_atomic";
/// An atomic step is committed, or rolled back.
pub const AFTER_SAGA_ATOMIC: &str = "after_saga_atomic";

/// All points of a saga; most of them are passed several times.
pub const IN_SAGA: [&str; 6] = [
    AFTER_SAGA_START,
    BEFORE_SAGA_WRITE,
    AFTER_SAGA_WRITE,
    AFTER_SAGA_CALL,
    BEFORE_SAGA_ATOMIC,
    AFTER_SAGA_ATOMIC,
];

/// A dead letter is durable; its message is not acked to the broker.
pub const AFTER_DEAD_LETTER: &str = "after_dead_letter";
/// The message of a dead letter was handled; the dead letter still exists.
pub const BEFORE_LETTER_GOES: &str = "before_letter_goes";

/// All points of a message that is handled in a transaction, in the order of the flow.
pub const IN_INBOX: [&str; 5] = [BEFORE_MARK, AFTER_MARK, AFTER_HANDLED, BEFORE_COMMIT, AFTER_COMMIT];

/// All points of a relay, in the order of the flow.
pub const IN_RELAY: [&str; 3] = [BEFORE_PUBLISH, AFTER_PUBLISH, AFTER_DONE];

/// All points of a relay whose sink keeps the position, in the order of the flow.
pub const IN_EXACTLY_ONCE: [&str; 8] = [
    BEFORE_BEGIN,
    AFTER_BEGIN,
    BEFORE_PUBLISH,
    BEFORE_SINK_COMMIT,
    AFTER_SINK_COMMIT,
    AFTER_PUBLISH,
    BEFORE_DONE,
    AFTER_DONE,
];

/// All points of the guard, in the order of the flow.
pub const ALL: [&str; 7] =
    [BEFORE_CLAIM, AFTER_CLAIM, BEFORE_EFFECT, AFTER_EFFECT, BEFORE_FINISH, AFTER_FINISH, BEFORE_ANSWER];

/// All points of work in the caller's transaction, in the order of the flow. There a finish is not yet durable: the
/// commit decides.
pub const IN_TX: [&str; 8] = [
    BEFORE_CLAIM,
    AFTER_CLAIM,
    BEFORE_EFFECT,
    AFTER_EFFECT,
    BEFORE_FINISH,
    AFTER_FINISH,
    BEFORE_COMMIT,
    AFTER_COMMIT,
];
