-- A page, newest first.
--   $1 now   $2 below this seq   $3 not below this seq   $4 states wanted, a bit each
--   $5 operation or NULL   $6 tenant or NULL   $7 at least this many ms in its state   $8 how many
--   $9 its key may be forgotten by then, or NULL
-- An open record has the time until which its key protects in expires_at: see encoding.rs.
-- {open} is filled in where only open ones are wanted: then their small index is scanned.
SELECT
    $1::bigint, i.state, i.effect, i.epoch, i.attempts, i.lease_until, i.created_at, i.changed_at, i.expires_at,
    i.owner, i.recipe, i.fingerprint, i.decision, i.outcome, i.scope, operation.name, i.key, i.seq
FROM semel_intent i
CROSS JOIN LATERAL (SELECT name FROM semel_operation WHERE semel_operation.n = i.operation OFFSET 0) operation
WHERE i.seq < $2::bigint
  AND i.seq >= $3::bigint
  {open}
  -- Expired counts as absent.
  AND (i.state < 2 OR i.expires_at IS NULL OR i.expires_at > $1::bigint)
  -- The state that holds now: an opaque claim whose lease has expired, or ends more than a day
  -- from now, is uncertain, and so is one whose key may be forgotten.
  AND ($4::integer >> CASE
      WHEN i.state = 0 AND i.effect = 0
          AND NOT (i.lease_until > $1::bigint AND i.lease_until <= $1::bigint + 86400000)
          AND (i.expires_at IS NULL OR i.expires_at <= $1::bigint) THEN 1
      WHEN i.state = 1 AND i.effect = 0 AND i.expires_at > $1::bigint THEN 4
      ELSE i.state
  END) & 1 = 1
  AND ($5::text IS NULL OR operation.name = $5::text)
  -- The tenant is the scope up to its first '/'.
  AND ($6::text IS NULL OR split_part(i.scope, '/', 1) = $6::text)
  AND greatest(0, $1::bigint - CASE WHEN i.state = 0 AND NOT (i.lease_until > $1::bigint AND i.lease_until <= $1::bigint + 86400000) THEN i.lease_until ELSE i.changed_at END) >= $7::bigint
  AND ($9::bigint IS NULL OR (i.state < 2 AND i.expires_at <= $9::bigint))
ORDER BY i.seq DESC
LIMIT $8::bigint
