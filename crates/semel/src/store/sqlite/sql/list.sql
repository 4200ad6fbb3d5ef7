-- A page, newest first.
--   ?1 now   ?2 below this seq   ?3 not below this seq   ?4 states wanted, a bit each
--   ?5 operation.n or NULL   ?6 tenant or NULL   ?7 at least this many ms in its state   ?8 how many
--   ?9 its key may be forgotten by then, or NULL
-- An open record has the time until which its key protects in expires_at: see encoding.rs.
-- {index} and {open} are filled in where only open ones are wanted. CROSS JOIN forces the planner to read the intents
-- in order.
SELECT seq, state, effect, epoch, attempts, lease_until, created_at, changed_at, expires_at,
       owner, recipe, fingerprint, decision, outcome, scope, name, key
FROM intent {index} CROSS JOIN operation ON operation.n = intent.operation
WHERE seq < ?2
  AND seq >= ?3
  {open}
  -- Expired counts as absent.
  AND (state < 2 OR expires_at IS NULL OR expires_at > ?1)
  -- The state that holds now: an opaque claim whose lease has expired, or ends more than a day from
  -- now, is uncertain, and so is one whose key may be forgotten.
  AND (?4 >> CASE
      WHEN state = 0 AND effect = 0 AND NOT (lease_until > ?1 AND lease_until <= ?1 + 86400000)
          AND (expires_at IS NULL OR expires_at <= ?1) THEN 1
      WHEN state = 1 AND effect = 0 AND expires_at > ?1 THEN 4
      ELSE state
  END) & 1
  AND (?5 IS NULL OR intent.operation = ?5)
  -- The tenant is the scope up to its first '/'; '0' is the character after '/'.
  AND (?6 IS NULL OR scope = ?6 OR (scope >= ?6 || '/' AND scope < ?6 || '0'))
  AND max(0, ?1 - CASE WHEN state = 0 AND NOT (lease_until > ?1 AND lease_until <= ?1 + 86400000) THEN lease_until ELSE changed_at END) >= ?7
  AND (?9 IS NULL OR (state < 2 AND expires_at <= ?9))
ORDER BY seq DESC
LIMIT ?8
