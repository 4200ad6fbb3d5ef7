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
    made_at         INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
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
