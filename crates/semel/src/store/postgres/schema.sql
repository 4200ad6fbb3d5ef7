-- semel's tables, version 1. Everything below is one transaction.
-- No schema is named: the tables are created in the first one of the search_path.
-- Times are milliseconds since 1970 by the server's clock.

-- One row: the version and identity of these tables. A cache, a cursor or a backup with another store id belongs to
-- other tables.
CREATE TABLE semel_meta (
    only_row boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    version  integer     NOT NULL,
    store    uuid        NOT NULL DEFAULT gen_random_uuid(),
    made_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO semel_meta (version) VALUES (1);

-- The epochs. They outlive the records, so that none is ever used twice. CACHE 1: a session that reserves a few for
-- later would give a later claim a lower epoch.
CREATE SEQUENCE semel_epoch AS bigint CACHE 1;

-- Names of operations, once each instead of once per intent. Not unique on purpose: with a unique index, an
-- application's transaction that is the first to use a name would make all others that use it first wait for its
-- commit. So a name may get two numbers when two transactions insert it at once; the lower one is used from then on.
CREATE TABLE semel_operation (
    n    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text    COLLATE "C" NOT NULL
);
CREATE INDEX semel_operation_name ON semel_operation (name, n);

-- Columns of eight bytes first, wide ones last: no bytes are lost to padding. `id` decides which claim runs, so this
-- table is never partitioned: a unique key over partitions would need more columns than the id.
CREATE TABLE semel_intent (
    seq         bigint   NOT NULL,             -- the epoch of the first claim: the order of the list
    epoch       bigint   NOT NULL,
    lease_until bigint   NOT NULL,
    created_at  bigint   NOT NULL,
    changed_at  bigint   NOT NULL,
    expires_at  bigint,                        -- finished: when it is forgotten, NULL is never; open: until when its key protects
    recipe      bigint   NOT NULL,
    operation   integer  NOT NULL,             -- semel_operation.n
    attempts    integer  NOT NULL,
    state       smallint NOT NULL,             -- 0 in_progress, 1 uncertain, 2 completed, 3 failed_final, 4 failed_retryable
    effect      smallint NOT NULL,             -- 0 opaque, 1 keyed, 2 atomic
    id          bytea    NOT NULL PRIMARY KEY, -- SHA-256 over scope, operation and key
    owner       bytea    NOT NULL,
    fingerprint bytea    NOT NULL,
    scope       text     COLLATE "C" NOT NULL,
    key         text     COLLATE "C" NOT NULL,
    decision    text,                          -- JSON: ruling, by, why, at
    outcome     bytea
) WITH (
    -- Room on the page for a renewal, which then changes no index.
    fillfactor = 90,
    -- Every record leaves one dead version behind, when it is finished. Vacuumed after a fiftieth of the table
    -- instead of a fifth, and without pauses: a table of a million records must not collect 200,000 dead ones first.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- Outcomes are already compressed or not worth it: the server does not try.
ALTER TABLE semel_intent ALTER COLUMN outcome SET STORAGE EXTERNAL;

-- The list, newest first.
CREATE INDEX semel_intent_seq ON semel_intent (seq);

-- The few open ones, so that people find the uncertain ones among millions.
CREATE INDEX semel_intent_open ON semel_intent (seq) WHERE state < 2;

-- What the sweep deletes next.
CREATE INDEX semel_intent_expiry ON semel_intent (expires_at) WHERE expires_at IS NOT NULL;

-- For people with psql. The state is the one that holds now: an opaque claim whose lease has expired is uncertain,
-- although that is stored nowhere.
CREATE VIEW semel_intents AS
SELECT
    encode(i.id, 'hex') AS id,
    i.scope,
    o.name AS operation,
    i.key,
    CASE
        WHEN i.state = 0 AND i.effect = 0 AND i.lease_until <= clock.now THEN 'uncertain'
        WHEN i.state >= 2 AND i.expires_at <= clock.now THEN 'expired'
        ELSE (ARRAY['in_progress', 'uncertain', 'completed', 'failed_final', 'failed_retryable'])[i.state + 1]
    END AS state,
    (ARRAY['opaque', 'keyed', 'atomic'])[i.effect + 1] AS effect,
    i.epoch,
    i.attempts,
    encode(i.owner, 'hex') AS owner,
    to_timestamp(i.lease_until / 1000.0) AS lease_until,
    to_timestamp(i.created_at / 1000.0) AS created_at,
    to_timestamp(i.changed_at / 1000.0) AS changed_at,
    to_timestamp(i.expires_at / 1000.0) AS expires_at,
    octet_length(i.outcome) AS outcome_bytes,
    i.decision::json AS decision
FROM semel_intent i
JOIN semel_operation o ON o.n = i.operation
CROSS JOIN (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) clock
ORDER BY i.seq DESC;
