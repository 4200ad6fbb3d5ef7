-- Leases, many at once.
--   $1 ids, sorted   $2 owners   $3 epochs   $4 leases in ms
--
-- Answers: the end of the lease; or NULL with again = true: another transaction has the row locked, or it changed after
-- the snapshot was taken (another renewal of the same owner does that), so it is retried. No answer: the claim is lost.
-- An expired lease is not revived.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
),
asked AS MATERIALIZED (
    SELECT *
    FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bigint[])
        WITH ORDINALITY AS asked (id, owner, epoch, lease_ms, n)
),
locked AS MATERIALIZED (
    SELECT asked.n, row.at
    FROM asked
    CROSS JOIN clock
    CROSS JOIN LATERAL (
        SELECT ctid AS at
        FROM semel_intent
        WHERE semel_intent.id = asked.id AND semel_intent.owner = asked.owner
          AND semel_intent.epoch = asked.epoch AND semel_intent.state = 0
          AND semel_intent.lease_until > clock.now AND semel_intent.lease_until <= clock.now + 86400000
        OFFSET 0
        FOR NO KEY UPDATE SKIP LOCKED
    ) row
),
done AS (
    UPDATE semel_intent
    SET lease_until = clock.now + asked.lease_ms
    FROM locked
    JOIN asked ON asked.n = locked.n
    CROSS JOIN clock
    WHERE semel_intent.ctid = locked.at
    RETURNING semel_intent.id, semel_intent.lease_until
)
SELECT id, lease_until, false AS again FROM done
UNION ALL
SELECT asked.id, NULL, true
FROM asked
WHERE asked.id NOT IN (SELECT id FROM done)
  AND EXISTS (
      SELECT FROM semel_intent, clock
      WHERE semel_intent.id = asked.id AND semel_intent.owner = asked.owner
        AND semel_intent.epoch = asked.epoch AND semel_intent.state = 0
        AND semel_intent.lease_until > clock.now AND semel_intent.lease_until <= clock.now + 86400000
  )
