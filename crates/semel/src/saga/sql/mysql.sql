-- Sagas: their state, their journal, their workers and signals. Version 1. Times are in ms. In MySQL every statement commits
-- by itself, and the version is set last, so that a second run goes on.

-- One row: the version of these tables.
CREATE TABLE IF NOT EXISTS semel_saga_meta (
    only_row tinyint NOT NULL PRIMARY KEY CHECK (only_row = 1),
    version  int     NOT NULL
) ENGINE = InnoDB;

-- Processes that run sagas. A worker whose lease is over is ended first, and then its sagas are taken; its number is never
-- used again.
CREATE TABLE IF NOT EXISTS semel_saga_worker (
    id          bigint  NOT NULL AUTO_INCREMENT PRIMARY KEY,
    lease_until bigint  NOT NULL,
    ended       tinyint NOT NULL DEFAULT 0
) ENGINE = InnoDB;

-- One row per saga.
CREATE TABLE IF NOT EXISTS semel_saga (
    n          bigint        NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id         binary(32)    NOT NULL, -- SHA-256 over scope, operation and key
    status     tinyint       NOT NULL, -- 0 running, 1 waiting, 2 undoing, 3 parked, 4 completed, 5 undone, 6 abandoned
    reason     tinyint,                -- why it is parked
    undo_cause tinyint,                -- why it is undone: 0 refused, 1 deadline, 2 cancelled
    epoch      bigint        NOT NULL, -- the fence: rises with every takeover and when undoing begins
    worker     bigint,                 -- who has it; NULL: the next that is free, when it is due
    due_at     bigint,
    deadline   bigint,
    signals    bigint        NOT NULL, -- how many came
    cancelled  tinyint       NOT NULL,
    expires_at bigint,
    name       varchar(64)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version    int           NOT NULL,
    scope      varchar(1200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    operation  varchar(255)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    `key`      varchar(255)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    recipe     bigint        NOT NULL,
    digest     binary(32)    NOT NULL, -- fingerprint of the input
    input      longblob      NOT NULL,
    outcome    longblob,               -- the result, or why it was undone
    created_at bigint        NOT NULL,
    UNIQUE KEY semel_saga_id (id),
    KEY semel_saga_due (worker, name, due_at),
    KEY semel_saga_expires (expires_at),
    KEY semel_saga_status (status, n)
) ENGINE = InnoDB;

-- The journal: insert only.
CREATE TABLE IF NOT EXISTS semel_saga_entry (
    saga       bigint      NOT NULL,
    seq        int         NOT NULL,
    kind       tinyint     NOT NULL, -- 0 begin, 1 done, 2 refused, 3 failed, 4 unknown, 5 decided, 6 sleep, 7 signal, 8 timed out, 9 operator
    step       varchar(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    nth        int         NOT NULL,
    op         tinyint     NOT NULL, -- 0 forward, 1 pivot, 2 undo
    attempt    bigint      NOT NULL, -- counted from 1; 0 is a lookup, or a decision
    epoch      bigint      NOT NULL,
    at         bigint      NOT NULL,
    safe_until bigint,               -- until when the participant's own key protects the step
    input      longblob,
    body       longblob,
    -- 1 where the entry says "done", otherwise NULL, which a unique key does not compare.
    is_done    tinyint     GENERATED ALWAYS AS (IF(kind = 1, 1, NULL)) STORED,
    PRIMARY KEY (saga, seq),
    UNIQUE KEY semel_saga_once (saga, step, nth, op, is_done)
) ENGINE = InnoDB;

-- The signals that sagas got.
CREATE TABLE IF NOT EXISTS semel_saga_signal (
    saga bigint       NOT NULL,
    id   varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    seq  bigint       NOT NULL,
    name varchar(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    body longblob     NOT NULL,
    PRIMARY KEY (saga, id)
) ENGINE = InnoDB;

-- For people and dashboards.
CREATE OR REPLACE VIEW saga_executions AS
SELECT
    LOWER(HEX(s.id)) AS saga_id,
    s.n,
    s.name,
    s.scope,
    s.`key`,
    ELT(s.status + 1, 'running', 'waiting', 'undoing', 'parked', 'completed', 'undone', 'abandoned') AS status,
    (SELECT CONCAT(e.step, '#', e.nth) FROM semel_saga_entry e WHERE e.saga = s.n ORDER BY e.seq DESC LIMIT 1) AS current_step,
    (SELECT CONCAT('[', GROUP_CONCAT(JSON_OBJECT(
        'seq', e.seq,
        'step', CONCAT(e.step, '#', e.nth),
        'op', ELT(e.op + 1, 'forward', 'pivot', 'undo'),
        'kind', ELT(e.kind + 1, 'begin', 'done', 'refused', 'failed', 'unknown', 'decided', 'sleep', 'signal', 'timed_out', 'operator'),
        'at', e.at) ORDER BY e.seq SEPARATOR ','), ']') FROM semel_saga_entry e WHERE e.saga = s.n) AS steps,
    FROM_UNIXTIME(s.created_at / 1000) AS created_at
FROM semel_saga s;
INSERT INTO semel_saga_meta VALUES (1, 1) ON DUPLICATE KEY UPDATE version = version;
