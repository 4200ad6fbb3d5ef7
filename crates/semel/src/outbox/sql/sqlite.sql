-- Events to be published, version 1.

-- One row: what these tables are.
CREATE TABLE semel_outbox_meta (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    version  INTEGER NOT NULL,
    lineage  TEXT    NOT NULL
) STRICT;
INSERT INTO semel_outbox_meta VALUES (1, 1, lower(hex(randomblob(16))));

-- There is one writer, so numbers become visible in their order. AUTOINCREMENT: the number of the last event is never
-- given away again, also after that event was pruned.
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

-- How far the relay has come: up to after_seq everything is published, and what lies between after_seq and until_seq is
-- being sent. One relay at a time has the lease; nobody changes the row whose epoch is not theirs.
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

-- Keys whose events are held back because one of them could not be published. due_at: when it is tried again, in ms;
-- never by itself when null.
CREATE TABLE semel_outbox_parked_key (
    key    TEXT    PRIMARY KEY,
    tries  INTEGER NOT NULL DEFAULT 0,
    due_at INTEGER
) STRICT;
CREATE INDEX semel_outbox_parked_by_due ON semel_outbox_parked_key (due_at) WHERE due_at IS NOT NULL;

-- What is held back, whole, in the order it is to be published in (n). The first of a key has the error.
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
