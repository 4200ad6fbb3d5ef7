-- The inbox: messages that were handled. Version 1.

-- One row: the version of these tables.
CREATE TABLE semel_inbox_meta (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    version  INTEGER NOT NULL,
    lineage  TEXT    NOT NULL
) STRICT;
INSERT INTO semel_inbox_meta VALUES (1, 1, lower(hex(randomblob(16))));

-- One row per transaction that marked messages: consumer, source, when it began and ended (ms). AUTOINCREMENT: no
-- number is reused, also after a batch was pruned.
CREATE TABLE semel_inbox_batch (
    batch    INTEGER PRIMARY KEY AUTOINCREMENT,
    began_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    ended_at INTEGER,
    messages INTEGER NOT NULL,
    consumer TEXT    NOT NULL,
    source   TEXT    NOT NULL
) STRICT;
CREATE INDEX semel_inbox_batch_of ON semel_inbox_batch (consumer, began_at);

-- Marks. One row per message and consumer: the sixteen bytes are a digest of both.
CREATE TABLE semel_inbox (
    id    BLOB    NOT NULL PRIMARY KEY,
    batch INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX semel_inbox_of ON semel_inbox (batch);

-- Results of handling a message, if they are stored.
CREATE TABLE semel_inbox_result (
    id      BLOB NOT NULL PRIMARY KEY,
    outcome BLOB NOT NULL
) STRICT, WITHOUT ROWID;
