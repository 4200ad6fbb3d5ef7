-- Dead letters: messages that could not be handled, for people. Version 2.

-- One row per message and consumer. Moments are in ms. AUTOINCREMENT: no number comes twice.
CREATE TABLE semel_inbox_dead (
    n               INTEGER PRIMARY KEY AUTOINCREMENT,
    -- The mark it would have; of a message without an id, what tells its place.
    id              BLOB    NOT NULL UNIQUE,
    consumer        TEXT    NOT NULL,
    source          TEXT    NOT NULL,
    -- Which message it is, to the byte. NULL: nobody could tell.
    identity        BLOB,
    message_id      TEXT,
    topic           TEXT    NOT NULL,
    lineage         TEXT,
    place           TEXT    NOT NULL,
    key             TEXT,
    -- JSON: pairs of name and text, in their order.
    headers         TEXT    NOT NULL,
    payload         BLOB    NOT NULL,
    content_type    TEXT,
    error           TEXT    NOT NULL,
    attempts        INTEGER NOT NULL,
    first_failed_at INTEGER NOT NULL,
    dead_at         INTEGER NOT NULL,
    -- When it is to be handled again; while somebody does, when others may. NULL: not at all.
    retry_at        INTEGER,
    -- Given up, and why. Its payload and headers are gone.
    dropped_at      INTEGER,
    dropped_why     TEXT
) STRICT;
CREATE INDEX semel_inbox_dead_of ON semel_inbox_dead (consumer, n);
CREATE INDEX semel_inbox_dead_retry ON semel_inbox_dead (consumer, n) WHERE retry_at IS NOT NULL;
CREATE INDEX semel_inbox_dead_dropped ON semel_inbox_dead (dropped_at) WHERE dropped_at IS NOT NULL;
UPDATE semel_inbox_meta SET version = 2;
