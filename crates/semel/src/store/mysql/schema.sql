-- semel's tables in MySQL or MariaDB, version 1. InnoDB commits before each of these statements, so each may be
-- run again; the version is written last.
-- Times are milliseconds since 1970. Text is compared byte by byte: K1 is not k1.

-- The version, and the lineage: a random id, created with the tables. A program that keeps data about this store
-- elsewhere compares it, and so notices another store behind the same name.
CREATE TABLE IF NOT EXISTS semel_meta (
    only_row TINYINT    NOT NULL PRIMARY KEY,
    version  INT        NOT NULL,
    lineage  BINARY(16) NOT NULL,
    CONSTRAINT semel_meta_only_row CHECK (only_row = 1)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Names of operations, once each instead of once per intent. Not unique on purpose: with a unique index, an
-- application's transaction that is the first to use a name would make all others that use it first wait for its
-- commit. So a name may get two numbers when two transactions insert it at once; the lower one is used from then on.
CREATE TABLE IF NOT EXISTS semel_operation (
    n    INT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name VARCHAR(200) NOT NULL,
    KEY semel_operation_name (name, n)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The source of epochs: each transaction that needs some takes the next n, and with it the 1,024 epochs from 1024 n
-- on. The same transaction deletes the row; the counter survives that, and a restart, and is taken without a lock
-- that lasts until the commit. Two claims never wait for each other here.
CREATE TABLE IF NOT EXISTS semel_fence (
    n BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The id is the primary key, because a duplicate of a primary key locks that one row; a duplicate of a secondary key
-- would lock the gap beside it too, and with it unrelated rows.
CREATE TABLE IF NOT EXISTS semel_intent (
    id          BINARY(32)   NOT NULL PRIMARY KEY, -- SHA-256 over scope, operation and key
    state       TINYINT      NOT NULL,             -- 0 in_progress, 1 uncertain, 2 completed, 3 failed_final, 4 failed_retryable
    effect      TINYINT      NOT NULL,             -- 0 opaque, 1 keyed, 2 atomic
    epoch       BIGINT       NOT NULL,
    attempts    BIGINT       NOT NULL,
    lease_until BIGINT       NOT NULL,
    created_at  BIGINT       NOT NULL,
    changed_at  BIGINT       NOT NULL,
    expires_at  BIGINT       NULL,                 -- finished: when it is forgotten, NULL is never; open: until when its key protects
    owner       BINARY(16)   NOT NULL,
    recipe      BIGINT       NOT NULL,
    fingerprint BINARY(32)   NOT NULL,
    operation   INT          NOT NULL,             -- semel_operation.n
    scope       VARCHAR(1200) NOT NULL,
    `key`       VARCHAR(255) NOT NULL,
    decision    TEXT         NULL,                 -- JSON: ruling, by, why, at
    outcome     MEDIUMBLOB   NULL,
    -- The order of the list: InnoDB adds the id.
    KEY semel_intent_created (created_at),
    -- What the sweep deletes next, and the few open records.
    KEY semel_intent_expiry (state, expires_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC;

-- The phases of operations in flight, one row for each operation: a transaction that has the intent's row locked also
-- has this one, and no statement searches for a row that does not exist, which would lock the gap and with it
-- unrelated rows. Deleted when the operation has ended: from then on its outcome counts.
CREATE TABLE IF NOT EXISTS semel_phase (
    id      BINARY(32) NOT NULL PRIMARY KEY, -- semel_intent.id
    done    INT        NOT NULL,             -- how many phases are committed
    attempt BINARY(16) NOT NULL,             -- id of the transaction that runs a phase
    plan    TEXT       NOT NULL,             -- the names of all phases when the last one was committed
    results LONGBLOB   NOT NULL              -- for each committed phase: length (4 bytes), outcome
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC;

-- For people with the mysql tool. The state is the one that holds now: an opaque claim whose lease has expired is
-- uncertain, although that is stored nowhere.
CREATE OR REPLACE VIEW semel_intents AS
SELECT
    LOWER(HEX(i.id)) AS id,
    i.scope,
    o.name AS operation,
    i.`key`,
    CASE
        WHEN i.state = 0 AND i.effect = 0 AND i.lease_until <= UNIX_TIMESTAMP(NOW(3)) * 1000 THEN 'uncertain'
        WHEN i.state >= 2 AND i.expires_at <= UNIX_TIMESTAMP(NOW(3)) * 1000 THEN 'expired'
        ELSE ELT(i.state + 1, 'in_progress', 'uncertain', 'completed', 'failed_final', 'failed_retryable')
    END AS state,
    ELT(i.effect + 1, 'opaque', 'keyed', 'atomic') AS effect,
    i.epoch,
    i.attempts,
    LOWER(HEX(i.owner)) AS owner,
    FROM_UNIXTIME(i.lease_until / 1000) AS lease_until,
    FROM_UNIXTIME(i.created_at / 1000) AS created_at,
    FROM_UNIXTIME(i.changed_at / 1000) AS changed_at,
    FROM_UNIXTIME(i.expires_at / 1000) AS expires_at,
    LENGTH(i.outcome) AS outcome_bytes,
    i.decision
FROM semel_intent i JOIN semel_operation o ON o.n = i.operation;

INSERT INTO semel_meta (only_row, version, lineage) VALUES (1, 1, UNHEX(MD5(CONCAT(UUID(), RAND(), CONNECTION_ID()))))
ON DUPLICATE KEY UPDATE version = version;
