-- Sagas: their state, their journal, their workers and signals. Version 1. Times are in ms.

-- One row: the version of these tables.
CREATE TABLE semel_saga_meta (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    version  INTEGER NOT NULL
) STRICT;
INSERT INTO semel_saga_meta VALUES (1, 1);

-- Processes that run sagas. A worker whose lease is over is ended first, and then its sagas are taken. AUTOINCREMENT: no
-- number is used again.
CREATE TABLE semel_saga_worker (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    lease_until INTEGER NOT NULL,
    ended       INTEGER NOT NULL DEFAULT 0
) STRICT;

-- One row per saga.
CREATE TABLE semel_saga (
    n          INTEGER PRIMARY KEY AUTOINCREMENT,
    id         BLOB    NOT NULL UNIQUE, -- SHA-256 over scope, operation and key
    status     INTEGER NOT NULL,        -- 0 running, 1 waiting, 2 undoing, 3 parked, 4 completed, 5 undone, 6 abandoned
    reason     INTEGER,                 -- why it is parked
    undo_cause INTEGER,                 -- why it is undone: 0 refused, 1 deadline, 2 cancelled
    epoch      INTEGER NOT NULL,        -- the fence: rises with every takeover and when undoing begins
    worker     INTEGER,                 -- who has it; NULL: the next that is free, when it is due
    due_at     INTEGER,
    deadline   INTEGER,
    signals    INTEGER NOT NULL,        -- how many came
    cancelled  INTEGER NOT NULL,
    expires_at INTEGER,
    name       TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    scope      TEXT    NOT NULL,
    operation  TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    recipe     INTEGER NOT NULL,
    digest     BLOB    NOT NULL,        -- fingerprint of the input
    input      BLOB    NOT NULL,
    outcome    BLOB,                    -- the result, or why it was undone
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX semel_saga_due ON semel_saga (name, due_at) WHERE worker IS NULL AND due_at IS NOT NULL;
CREATE INDEX semel_saga_worked ON semel_saga (worker) WHERE worker IS NOT NULL;
CREATE INDEX semel_saga_expires ON semel_saga (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX semel_saga_open ON semel_saga (status, n) WHERE status < 4;

-- The journal: insert only.
CREATE TABLE semel_saga_entry (
    saga       INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    kind       INTEGER NOT NULL, -- 0 begin, 1 done, 2 refused, 3 failed, 4 unknown, 5 decided, 6 sleep, 7 signal, 8 timed out, 9 operator
    step       TEXT    NOT NULL,
    nth        INTEGER NOT NULL,
    op         INTEGER NOT NULL, -- 0 forward, 1 pivot, 2 undo
    attempt    INTEGER NOT NULL, -- counted from 1; 0 is a lookup, or a decision
    epoch      INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    safe_until INTEGER,          -- until when the participant's own key protects the step
    input      BLOB,
    body       BLOB,
    PRIMARY KEY (saga, seq)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX semel_saga_once ON semel_saga_entry (saga, step, nth, op) WHERE kind = 1;

-- The signals that sagas got.
CREATE TABLE semel_saga_signal (
    saga INTEGER NOT NULL,
    id   TEXT    NOT NULL,
    seq  INTEGER NOT NULL,
    name TEXT    NOT NULL,
    body BLOB    NOT NULL,
    PRIMARY KEY (saga, id)
) STRICT, WITHOUT ROWID;

-- For people and dashboards.
CREATE VIEW saga_executions AS
SELECT
    lower(hex(s.id)) AS saga_id,
    s.n,
    s.name,
    s.scope,
    s.key,
    CASE s.status WHEN 0 THEN 'running' WHEN 1 THEN 'waiting' WHEN 2 THEN 'undoing' WHEN 3 THEN 'parked'
        WHEN 4 THEN 'completed' WHEN 5 THEN 'undone' WHEN 6 THEN 'abandoned' END AS status,
    (SELECT e.step || '#' || e.nth FROM semel_saga_entry e WHERE e.saga = s.n ORDER BY e.seq DESC LIMIT 1) AS current_step,
    (SELECT json_group_array(json_object(
        'seq', e.seq,
        'step', e.step || '#' || e.nth,
        'op', CASE e.op WHEN 0 THEN 'forward' WHEN 1 THEN 'pivot' WHEN 2 THEN 'undo' END,
        'kind', CASE e.kind WHEN 0 THEN 'begin' WHEN 1 THEN 'done' WHEN 2 THEN 'refused' WHEN 3 THEN 'failed'
            WHEN 4 THEN 'unknown' WHEN 5 THEN 'decided' WHEN 6 THEN 'sleep' WHEN 7 THEN 'signal' WHEN 8 THEN 'timed_out' WHEN 9 THEN 'operator' END,
        'at', e.at)) FROM (SELECT * FROM semel_saga_entry WHERE saga = s.n ORDER BY seq) e) AS steps,
    datetime(s.created_at / 1000, 'unixepoch') AS created_at
FROM semel_saga s;
