-- semel's tables in the application's own database, version 1.
-- Times are milliseconds since 1970.

-- One row: the version of these tables, and the last epoch handed out.
CREATE TABLE semel_tx (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    version  INTEGER NOT NULL,
    epoch    INTEGER NOT NULL
) STRICT;
INSERT INTO semel_tx VALUES (1, 1, 0);

CREATE TABLE semel_intent (
    seq         INTEGER PRIMARY KEY,     -- the epoch of the first claim
    id          BLOB    NOT NULL UNIQUE, -- SHA-256 over scope, operation and key
    state       INTEGER NOT NULL,        -- 0 in_progress, 1 uncertain, 2 completed, 3 failed_final, 4 failed_retryable
    effect      INTEGER NOT NULL,        -- 0 opaque, 1 keyed, 2 atomic
    epoch       INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    changed_at  INTEGER NOT NULL,
    expires_at  INTEGER,                 -- finished: when it is forgotten, NULL is never; open: until when its key protects
    owner       BLOB    NOT NULL,
    recipe      INTEGER NOT NULL,
    fingerprint BLOB    NOT NULL,
    operation   TEXT    NOT NULL,
    scope       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    decision    TEXT,                    -- JSON: ruling, by, why, at
    outcome     BLOB
) STRICT;

CREATE INDEX semel_intent_expiry ON semel_intent (expires_at) WHERE expires_at IS NOT NULL;

-- The phases of operations in flight. Deleted when the operation ends: then its outcome is the answer.
CREATE TABLE semel_phase (
    id       BLOB    NOT NULL,  -- semel_intent.id
    position INTEGER NOT NULL,  -- from 0
    plan     TEXT    NOT NULL,  -- the names of all phases as they were when this one was committed
    outcome  BLOB    NOT NULL,
    PRIMARY KEY (id, position)
) STRICT;
