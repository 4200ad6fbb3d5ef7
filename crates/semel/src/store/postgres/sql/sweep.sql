-- Deletes expired records: -1 when another sweep is running, else how many.
--   $1 how many at most   $2 first half of the lock's key
-- Only finished records have an expiry; `state` is checked all the same, because this deletes for good. Locked rows are
-- left for the next sweep. The phases of an operation are deleted with it; a locked row of phases is just being deleted
-- by a transaction that begins that operation anew.
WITH alone AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock($2::integer, 'semel_intent'::regclass::oid::integer) AS got
),
expired AS MATERIALIZED (
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
    WHERE semel_phase.id IN (SELECT id FROM expired)
    FOR UPDATE SKIP LOCKED
),
phases_gone AS (
    DELETE FROM semel_phase WHERE ctid = ANY (ARRAY (SELECT at FROM left_over)) RETURNING 1
),
gone AS (
    DELETE FROM semel_intent WHERE ctid = ANY (ARRAY (SELECT at FROM expired)) RETURNING 1
)
SELECT CASE WHEN (SELECT got FROM alone) THEN (SELECT count(*) FROM gone) ELSE -1 END AS swept
