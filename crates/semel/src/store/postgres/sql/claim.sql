-- Claims, many at once. One statement, one snapshot, one commit.
--
-- Reads first: a claim that finds a row and may not take it over is answered from the row, and nothing is written for
-- it. Only the rest is inserted or taken over. An id that is in none of the result sets lost a race after the snapshot
-- was taken; it is retried, and then the row exists.
--
--   $1 ids, sorted   $2 their lock keys   $3 owners   $4 fingerprints   $5 recipes   $6 effects
--   $7 leases in ms   $8 scopes   $9 operations   $10 keys   $11 whether it is the first of its id
--   $12 largest outcome that is sent along, in bytes   $13 how long keys protect, in ms, or NULL
--   $14 how long attempts may take, in ms
--
-- An open record has the time until which its key protects in expires_at, and is stored as an opaque one then: see
-- encoding.rs.
--
-- LATERAL … OFFSET 0: each id is looked up by index, whatever size the planner assumes for the table.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
),
asked AS MATERIALIZED (
    SELECT *
    FROM unnest(
        $1::bytea[], $2::bigint[], $3::bytea[], $4::bytea[], $5::bigint[], $6::smallint[],
        $7::bigint[], $8::text[], $9::text[], $10::text[], $11::boolean[], $13::bigint[], $14::bigint[]
    ) WITH ORDINALITY AS asked (
        id, lock, owner, fingerprint, recipe, effect, lease_ms, scope, operation, key, first, safe_for_ms, call_ms, n
    )
),
looked AS MATERIALIZED (
    SELECT
        asked.n, clock.now, asked.id, asked.first, asked.lock,
        i.state, i.effect, i.epoch, i.attempts, i.lease_until, i.created_at, i.changed_at, i.expires_at,
        i.owner, i.recipe, i.fingerprint, i.decision, i.outcome,
        CASE
            WHEN i.id IS NULL THEN 1
            -- Expired counts as absent.
            WHEN i.state >= 2 AND i.expires_at <= clock.now THEN 2
            -- Mismatch comes first.
            WHEN i.recipe = asked.recipe AND i.fingerprint <> asked.fingerprint THEN 0
            -- Lease expired (or granted while the clock was more than a day ahead): both attempts have to be protected,
            -- and the key until the next one has ended.
            WHEN i.state = 0 AND NOT (i.lease_until > clock.now AND i.lease_until <= clock.now + 86400000)
                AND i.effect > 0 AND i.expires_at IS NULL AND asked.effect > 0 THEN 3
            WHEN i.state = 0 AND NOT (i.lease_until > clock.now AND i.lease_until <= clock.now + 86400000)
                AND clock.now + asked.call_ms < i.expires_at AND asked.effect > 0 THEN 3
            -- Failed, and the key protects until the next one has ended.
            WHEN i.state = 1 AND i.effect = 0
                AND clock.now + asked.call_ms < i.expires_at AND asked.effect > 0 THEN 3
            -- It was decided that nothing was applied, and the next attempt sends no key.
            WHEN i.state = 1 AND i.effect = 0 AND clock.now < i.expires_at AND asked.effect = 0
                AND i.owner = '\x00000000000000000000000000000000' THEN 3
            -- Failed: a protected attempt says nothing about an earlier one, unless there is a decision.
            WHEN i.state = 4 AND (
                i.effect = 0 OR asked.effect > 0 OR i.owner = '\x00000000000000000000000000000000'
            ) THEN 3
            ELSE 0
        END AS way
    FROM asked
    CROSS JOIN clock
    LEFT JOIN LATERAL (SELECT * FROM semel_intent WHERE semel_intent.id = asked.id OFFSET 0) i ON true
),
-- A key that another open transaction has locked is not waited for.
wanted AS MATERIALIZED (
    SELECT looked.n, looked.id, looked.way, pg_try_advisory_xact_lock(looked.lock) AS got
    FROM looked
    WHERE looked.way > 0 AND looked.first
),
fresh AS (
    INSERT INTO semel_intent (
        seq, epoch, lease_until, created_at, changed_at, expires_at, recipe, operation, attempts, state, effect,
        id, owner, fingerprint, scope, key
    )
    SELECT
        new.epoch, new.epoch, clock.now + asked.lease_ms, clock.now, clock.now, clock.now + asked.safe_for_ms,
        asked.recipe, operation.n, 1, 0, CASE WHEN asked.safe_for_ms IS NULL THEN asked.effect ELSE 0 END, asked.id, asked.owner, asked.fingerprint, asked.scope, asked.key
    FROM asked
    CROSS JOIN clock
    CROSS JOIN LATERAL (
        SELECT n FROM semel_operation WHERE semel_operation.name = asked.operation ORDER BY n LIMIT 1
    ) operation
    CROSS JOIN LATERAL (SELECT nextval('semel_epoch') AS epoch WHERE asked.n > 0 OFFSET 0) new
    WHERE asked.n IN (SELECT wanted.n FROM wanted WHERE wanted.way = 1 AND wanted.got)
    -- Sorted: concurrent inserts of the same ids meet in the same order, so they do not deadlock.
    ORDER BY asked.n
    ON CONFLICT (id) DO NOTHING
    RETURNING id, epoch, lease_until, expires_at
),
-- A row locked without our advisory lock is not waited for either.
free AS MATERIALIZED (
    SELECT looked.n, row.at
    FROM looked
    CROSS JOIN LATERAL (
        SELECT semel_intent.ctid AS at
        FROM semel_intent
        WHERE semel_intent.id = looked.id AND semel_intent.epoch = looked.epoch
          AND semel_intent.state = looked.state AND semel_intent.lease_until = looked.lease_until
        OFFSET 0
        FOR NO KEY UPDATE SKIP LOCKED
    ) row
    WHERE looked.n IN (SELECT wanted.n FROM wanted WHERE wanted.way > 1 AND wanted.got)
),
taken AS (
    UPDATE semel_intent
    SET
        seq = CASE WHEN looked.way = 2 THEN new.epoch ELSE semel_intent.seq END,
        epoch = new.epoch,
        lease_until = clock.now + asked.lease_ms,
        created_at = CASE WHEN looked.way = 2 THEN clock.now ELSE semel_intent.created_at END,
        changed_at = clock.now,
        expires_at = key.safe_until,
        recipe = asked.recipe,
        attempts = CASE WHEN looked.way = 2 THEN 1 ELSE semel_intent.attempts + 1 END,
        state = 0,
        effect = CASE WHEN key.safe_until IS NULL THEN asked.effect ELSE 0 END,
        owner = asked.owner,
        fingerprint = asked.fingerprint,
        decision = CASE WHEN looked.way = 2 THEN NULL ELSE semel_intent.decision END,
        outcome = NULL
    FROM free
    JOIN looked ON looked.n = free.n
    JOIN asked ON asked.n = free.n
    CROSS JOIN clock
    CROSS JOIN LATERAL (
        SELECT greatest(nextval('semel_epoch'), looked.epoch + 1) AS epoch WHERE free.n > 0 OFFSET 0
    ) new
    -- The first attempt sets it, and no later one moves it. Nothing was done where an opaque attempt failed, or where
    -- there is a decision: then the next one is a first one, unless the decision kept a time that was still ahead.
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN looked.way = 2 THEN clock.now + asked.safe_for_ms
            WHEN looked.state = 4 AND (
                looked.effect = 0 OR looked.owner = '\x00000000000000000000000000000000'
            ) THEN clock.now + asked.safe_for_ms
            WHEN looked.state < 2 AND asked.effect > 0 THEN looked.expires_at
        END AS safe_until
    ) key
    WHERE semel_intent.ctid = free.at
    RETURNING
        free.n, semel_intent.epoch, semel_intent.attempts, semel_intent.lease_until, semel_intent.expires_at,
        looked.way = 3 AND looked.recipe <> asked.recipe AS other_recipe
)
SELECT
    0 AS part, n, NULL::bytea AS id, now, state, effect, epoch, attempts, lease_until, created_at, changed_at,
    expires_at, owner, recipe, fingerprint, decision,
    CASE WHEN octet_length(outcome) <= $12::integer THEN outcome END AS outcome,
    coalesce(octet_length(outcome) > $12::integer, false) AS flag
FROM looked
WHERE way = 0
UNION ALL
SELECT
    1, NULL, id, NULL, NULL, NULL, epoch, 1, lease_until, NULL, NULL, expires_at, NULL, NULL, NULL, NULL, NULL, false
FROM fresh
UNION ALL
SELECT
    1, n, NULL, NULL, NULL, NULL, epoch, attempts, lease_until, NULL, NULL, expires_at, NULL, NULL, NULL, NULL, NULL,
    other_recipe
FROM taken
UNION ALL
SELECT
    2, n, NULL, now, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false
FROM looked
-- All claims of such a key, not only the first.
WHERE way > 0 AND id IN (
    SELECT wanted.id
    FROM wanted
    WHERE NOT wanted.got OR (wanted.way > 1 AND wanted.n NOT IN (SELECT free.n FROM free))
)
