-- Dead letters: messages that could not be handled, for an operator to decide. Version 2.

-- One row per message and consumer. Times are in ms. AUTOINCREMENT: no number is reused.
CREATE TABLE semel_inbox_dead (
    n               INTEGER PRIMARY KEY AUTOINCREMENT,
    -- The mark the message would have; without an identity, a digest of its position and payload.
    id              BLOB    NOT NULL UNIQUE,
    consumer        TEXT    NOT NULL,
    source          TEXT    NOT NULL,
    -- The encoded identity. NULL: the message has none.
    identity        BLOB,
    message_id      TEXT,
    topic           TEXT    NOT NULL,
    lineage         TEXT,
    place           TEXT    NOT NULL,
    key             TEXT,
    -- JSON: pairs of name and value, in order.
    headers         TEXT    NOT NULL,
    payload         BLOB    NOT NULL,
    content_type    TEXT,
    error           TEXT    NOT NULL,
    attempts        INTEGER NOT NULL,
    first_failed_at INTEGER NOT NULL,
    dead_at         INTEGER NOT NULL,
    -- When to redeliver it; while it is leased, when the lease expires. NULL: not at all.
    retry_at        INTEGER,
    -- Dropped, and why. Its payload and headers are deleted.
    dropped_at      INTEGER,
    dropped_why     TEXT
) STRICT;
CREATE INDEX semel_inbox_dead_of ON semel_inbox_dead (consumer, n);
CREATE INDEX semel_inbox_dead_retry ON semel_inbox_dead (consumer, n) WHERE retry_at IS NOT NULL;
CREATE INDEX semel_inbox_dead_dropped ON semel_inbox_dead (dropped_at) WHERE dropped_at IS NOT NULL;
UPDATE semel_inbox_meta SET version = 2;
