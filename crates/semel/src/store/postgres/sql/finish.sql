-- Outcomes, many at once.
--   $1 ids, sorted   $2 owners   $3 epochs   $4 states   $5 retentions in ms, NULL is for ever   $6 outcomes
--
-- Answers: 0 recorded, 1 already, 2 stale, 3 retry (another transaction has the row locked, or it changed after the
-- snapshot was taken), 10 plus the state: another verdict was recorded before. No answer: no such row.
--
-- An open record has the time until which its key protects in expires_at; one that failed is stored as uncertain and
-- opaque until then: see encoding.rs.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
),
asked AS MATERIALIZED (
    SELECT *
    FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::smallint[], $5::bigint[], $6::bytea[])
        WITH ORDINALITY AS asked (id, owner, epoch, state, retention_ms, outcome, n)
),
locked AS MATERIALIZED (
    SELECT
        asked.n, asked.id, row.at, row.safe_until,
        CASE
            -- The fence is owner and epoch, never the lease.
            WHEN row.owner <> asked.owner OR row.epoch <> asked.epoch THEN 2
            -- The first outcome stands; an uncertain one may be made certain.
            WHEN row.state = asked.state THEN 1
            WHEN row.state >= 2 THEN 10 + row.state
            ELSE 3
        END AS answer
    FROM asked
    CROSS JOIN LATERAL (
        SELECT
            ctid AS at, owner, epoch,
            CASE WHEN state = 1 AND effect = 0 AND expires_at IS NOT NULL THEN 4 ELSE state END AS state,
            CASE WHEN state < 2 THEN expires_at END AS safe_until
        FROM semel_intent
        WHERE semel_intent.id = asked.id
        OFFSET 0
        FOR NO KEY UPDATE SKIP LOCKED
    ) row
),
done AS (
    UPDATE semel_intent
    SET
        state = CASE WHEN asked.state = 4 AND locked.safe_until IS NOT NULL THEN 1 ELSE asked.state END,
        effect = CASE
            WHEN locked.safe_until IS NULL THEN semel_intent.effect
            WHEN asked.state = 4 THEN 0
            ELSE 1
        END,
        changed_at = clock.now,
        expires_at = CASE
            WHEN asked.state IN (1, 4) AND locked.safe_until IS NOT NULL THEN locked.safe_until
            WHEN asked.state >= 2 THEN clock.now + asked.retention_ms
        END,
        outcome = asked.outcome
    FROM locked
    JOIN asked ON asked.n = locked.n
    CROSS JOIN clock
    WHERE locked.answer = 3 AND semel_intent.ctid = locked.at
    RETURNING semel_intent.id
)
SELECT id, 0 AS answer FROM done
UNION ALL
SELECT id, answer FROM locked
UNION ALL
SELECT asked.id, 3
FROM asked
WHERE asked.n NOT IN (SELECT n FROM locked)
  AND EXISTS (SELECT FROM semel_intent WHERE semel_intent.id = asked.id)
