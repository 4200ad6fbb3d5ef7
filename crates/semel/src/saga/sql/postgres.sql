-- Sagas: their state, their journal, their workers and signals. Version 1. Times are in ms.

-- One row: the version of these tables.
CREATE TABLE semel_saga_meta (
    only_row smallint NOT NULL PRIMARY KEY CHECK (only_row = 1),
    version  integer  NOT NULL
);
INSERT INTO semel_saga_meta VALUES (1, 1);

-- Processes that run sagas. A worker whose lease is over is ended first, and then its sagas are taken; its number is never
-- used again.
CREATE TABLE semel_saga_worker (
    id          bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lease_until bigint   NOT NULL,
    ended       smallint NOT NULL DEFAULT 0
);

-- One row per saga.
CREATE TABLE semel_saga (
    n          bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id         bytea    NOT NULL UNIQUE, -- SHA-256 over scope, operation and key
    status     smallint NOT NULL,        -- 0 running, 1 waiting, 2 undoing, 3 parked, 4 completed, 5 undone, 6 abandoned
    reason     smallint,                 -- why it is parked
    undo_cause smallint,                 -- why it is undone: 0 refused, 1 deadline, 2 cancelled
    epoch      bigint   NOT NULL,        -- the fence: rises with every takeover and when undoing begins
    worker     bigint,                   -- who has it; NULL: the next that is free, when it is due
    due_at     bigint,
    deadline   bigint,
    signals    bigint   NOT NULL,        -- how many came
    cancelled  smallint NOT NULL,
    expires_at bigint,
    name       text     COLLATE "C" NOT NULL,
    version    integer  NOT NULL,
    scope      text     COLLATE "C" NOT NULL,
    operation  text     COLLATE "C" NOT NULL,
    key        text     COLLATE "C" NOT NULL,
    recipe     bigint   NOT NULL,
    digest     bytea    NOT NULL,        -- fingerprint of the input
    input      bytea    NOT NULL,
    outcome    bytea,                    -- the result, or why it was undone
    created_at bigint   NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX semel_saga_due ON semel_saga (name, due_at) WHERE worker IS NULL AND due_at IS NOT NULL;
CREATE INDEX semel_saga_worked ON semel_saga (worker) WHERE worker IS NOT NULL;
CREATE INDEX semel_saga_expires ON semel_saga (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX semel_saga_open ON semel_saga (status, n) WHERE status < 4;

-- The journal: insert only.
CREATE TABLE semel_saga_entry (
    saga       bigint   NOT NULL,
    seq        integer  NOT NULL,
    kind       smallint NOT NULL, -- 0 begin, 1 done, 2 refused, 3 failed, 4 unknown, 5 decided, 6 sleep, 7 signal, 8 timed out, 9 operator
    step       text     COLLATE "C" NOT NULL,
    nth        integer  NOT NULL,
    op         smallint NOT NULL, -- 0 forward, 1 pivot, 2 undo
    attempt    bigint   NOT NULL, -- counted from 1; 0 is a lookup, or a decision
    epoch      bigint   NOT NULL,
    at         bigint   NOT NULL,
    safe_until bigint,            -- until when the participant's own key protects the step
    input      bytea,
    body       bytea,
    PRIMARY KEY (saga, seq)
);
CREATE UNIQUE INDEX semel_saga_once ON semel_saga_entry (saga, step, nth, op) WHERE kind = 1;

-- The signals that sagas got.
CREATE TABLE semel_saga_signal (
    saga bigint NOT NULL,
    id   text   COLLATE "C" NOT NULL,
    seq  bigint NOT NULL,
    name text   COLLATE "C" NOT NULL,
    body bytea  NOT NULL,
    PRIMARY KEY (saga, id)
);

-- For people and dashboards.
CREATE VIEW saga_executions AS
SELECT
    encode(s.id, 'hex') AS saga_id,
    s.n,
    s.name,
    s.scope,
    s.key,
    (ARRAY['running', 'waiting', 'undoing', 'parked', 'completed', 'undone', 'abandoned'])[s.status + 1] AS status,
    (SELECT e.step || '#' || e.nth FROM semel_saga_entry e WHERE e.saga = s.n ORDER BY e.seq DESC LIMIT 1) AS current_step,
    (SELECT json_agg(json_build_object(
        'seq', e.seq,
        'step', e.step || '#' || e.nth,
        'op', (ARRAY['forward', 'pivot', 'undo'])[e.op + 1],
        'kind', (ARRAY['begin', 'done', 'refused', 'failed', 'unknown', 'decided', 'sleep', 'signal', 'timed_out', 'operator'])[e.kind + 1],
        'at', e.at
     ) ORDER BY e.seq) FROM semel_saga_entry e WHERE e.saga = s.n) AS steps,
    to_timestamp(s.created_at / 1000.0) AS created_at
FROM semel_saga s;
