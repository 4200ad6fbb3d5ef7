-- Forgets some that have expired: -1 when another sweeper is at it, else how many.
--   $1 how many at most   $2 first half of the lock's key
-- Only what is finished has an expiry; `state` is asked all the same, because this forgets for good. Rows that
-- somebody holds are left for the next time. What an operation's phases left behind goes with it; rows of phases
-- that somebody holds are just being deleted by whoever begins that operation anew.
WITH alone AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock($2::integer, 'semel_intent'::regclass::oid::integer) AS got
),
doomed AS MATERIALIZED (
    SELECT semel_intent.ctid AS at, semel_intent.id
    FROM semel_intent
    WHERE (SELECT got FROM alone)
      AND semel_intent.expires_at IS NOT NULL
      AND semel_intent.expires_at <= (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
      AND semel_intent.state >= 2
    ORDER BY semel_intent.expires_at
    LIMIT $1::bigint
    FOR UPDATE SKIP LOCKED
),
left_over AS MATERIALIZED (
    SELECT semel_phase.ctid AS at
    FROM semel_phase
    WHERE semel_phase.id IN (SELECT id FROM doomed)
    FOR UPDATE SKIP LOCKED
),
phases_gone AS (
    DELETE FROM semel_phase WHERE ctid = ANY (ARRAY (SELECT at FROM left_over)) RETURNING 1
),
gone AS (
    DELETE FROM semel_intent WHERE ctid = ANY (ARRAY (SELECT at FROM doomed)) RETURNING 1
)
SELECT CASE WHEN (SELECT got FROM alone) THEN (SELECT count(*) FROM gone) ELSE -1 END AS swept
