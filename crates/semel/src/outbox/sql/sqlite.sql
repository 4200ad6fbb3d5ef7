-- Events to be published, version 1.

-- One row: the version and the lineage of these tables.
CREATE TABLE semel_outbox_meta (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    version  INTEGER NOT NULL,
    lineage  TEXT    NOT NULL
) STRICT;
INSERT INTO semel_outbox_meta VALUES (1, 1, lower(hex(randomblob(16))));

-- SQLite has one writer, so numbers become visible in their order. AUTOINCREMENT: the number of the last event is never
-- reused, even after that event was pruned.
--
-- From any language: INSERT INTO semel_outbox (topic, type, key, payload) VALUES (…). The rest has defaults.
CREATE TABLE semel_outbox (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    made_at         INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    id              TEXT    NOT NULL DEFAULT (
        lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2)
              || '-a' || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))
    ),
    topic           TEXT    NOT NULL,
    type            TEXT    NOT NULL,
    key             TEXT,
    aggregate_type  TEXT,
    aggregate_id    TEXT,
    content_type    TEXT    NOT NULL DEFAULT 'application/json',
    headers         TEXT,
    idempotency_key TEXT,
    trace_parent    TEXT,
    intent          BLOB,
    payload         BLOB    NOT NULL
) STRICT;

CREATE UNIQUE INDEX semel_outbox_once ON semel_outbox (idempotency_key) WHERE idempotency_key IS NOT NULL;

-- The polling cursor: everything up to after_seq is published, and the events after after_seq up to until_seq are in
-- flight. One relay at a time has the lease; a relay changes the row only under its own epoch (fencing).
CREATE TABLE semel_outbox_cursor (
    only_row    INTEGER PRIMARY KEY CHECK (only_row = 1),
    epoch       INTEGER NOT NULL,
    owner       TEXT,
    lease_until INTEGER NOT NULL,
    lineage     TEXT,
    after_seq   INTEGER NOT NULL,
    until_seq   INTEGER
) STRICT;
INSERT INTO semel_outbox_cursor VALUES (1, 0, NULL, 0, NULL, 0, NULL);

-- Parked keys: one of their events could not be published. due_at: time of the next retry, in ms; null: no automatic
-- retry.
CREATE TABLE semel_outbox_parked_key (
    key    TEXT    PRIMARY KEY,
    tries  INTEGER NOT NULL DEFAULT 0,
    due_at INTEGER
) STRICT;
CREATE INDEX semel_outbox_parked_by_due ON semel_outbox_parked_key (due_at) WHERE due_at IS NOT NULL;

-- Parked and held events, complete, in publishing order (n). The first event of a key has the error.
CREATE TABLE semel_outbox_parked (
    n               INTEGER PRIMARY KEY AUTOINCREMENT,
    parked_key      TEXT    NOT NULL,
    error           TEXT,
    parked_at       INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    made_at         INTEGER NOT NULL,
    id              TEXT    NOT NULL,
    topic           TEXT    NOT NULL,
    type            TEXT    NOT NULL,
    key             TEXT,
    aggregate_type  TEXT,
    aggregate_id    TEXT,
    content_type    TEXT    NOT NULL,
    headers         TEXT,
    idempotency_key TEXT,
    trace_parent    TEXT,
    intent          BLOB,
    payload         BLOB    NOT NULL
) STRICT;
CREATE INDEX semel_outbox_parked_by_key ON semel_outbox_parked (parked_key, n);
CREATE INDEX semel_outbox_parked_by_id ON semel_outbox_parked (id);
