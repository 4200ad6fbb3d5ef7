-- semel's tables, version 2. Everything below is one transaction.
-- Times are milliseconds since 1970.

-- Names of operations, once each instead of once per intent.
CREATE TABLE operation (
    n    INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

-- The last epoch assigned. It outlives the records, so that no epoch is ever used twice.
CREATE TABLE fence (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    epoch    INTEGER NOT NULL
) STRICT;
INSERT INTO fence VALUES (1, 0);

-- The identity of this data: cache entries of another lineage are not about this file. Replaced by
-- `semel migrate --new-lineage` after an older backup was restored.
CREATE TABLE lineage (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    id       BLOB NOT NULL CHECK (length(id) = 16)
) STRICT;
INSERT INTO lineage VALUES (1, randomblob(16));

-- Small columns first: reading the head never reads the overflow pages of a large outcome.
CREATE TABLE intent (
    seq         INTEGER PRIMARY KEY,     -- the epoch of the first claim: the order of the list
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
    operation   INTEGER NOT NULL,        -- operation.n
    scope       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    decision    TEXT,                    -- JSON: ruling, by, why, at
    outcome     BLOB
) STRICT;

-- The few open ones, so that people find the uncertain ones among millions.
CREATE INDEX intent_open ON intent (seq) WHERE state < 2;

-- What the sweep deletes next.
CREATE INDEX intent_expiry ON intent (expires_at) WHERE expires_at IS NOT NULL;

-- For people with the sqlite3 tool. The state is the one that holds now: an opaque claim whose lease has expired is
-- uncertain, although that is stored nowhere.
CREATE VIEW intents AS
WITH clock AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) AS now)
SELECT
    lower(hex(intent.id)) AS id,
    scope,
    operation.name AS operation,
    key,
    CASE
        WHEN state = 0 AND effect = 0 AND lease_until <= now THEN 'uncertain'
        WHEN state >= 2 AND expires_at <= now THEN 'expired'
        ELSE CASE state
            WHEN 0 THEN 'in_progress'
            WHEN 1 THEN 'uncertain'
            WHEN 2 THEN 'completed'
            WHEN 3 THEN 'failed_final'
            WHEN 4 THEN 'failed_retryable'
        END
    END AS state,
    CASE effect WHEN 0 THEN 'opaque' WHEN 1 THEN 'keyed' WHEN 2 THEN 'atomic' END AS effect,
    epoch,
    attempts,
    lower(hex(owner)) AS owner,
    datetime(lease_until / 1000, 'unixepoch') AS lease_until,
    datetime(created_at / 1000, 'unixepoch') AS created_at,
    datetime(changed_at / 1000, 'unixepoch') AS changed_at,
    datetime(expires_at / 1000, 'unixepoch') AS expires_at,
    length(outcome) AS outcome_bytes,
    decision
FROM intent JOIN operation ON operation.n = intent.operation CROSS JOIN clock
ORDER BY seq DESC;

PRAGMA application_id = 0x53454D4C; -- "SEML"
PRAGMA user_version = 2;
