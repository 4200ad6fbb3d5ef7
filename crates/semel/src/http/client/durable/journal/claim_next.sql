-- Claims the oldest open intent that has no live lease.
--   ?1 now   ?2 after this seq   ?3 owner   ?4 lease_until
UPDATE intent
SET owner = ?3, lease_until = ?4, changed_at = ?1
WHERE seq = (
    SELECT seq FROM intent INDEXED BY intent_unfinished
    WHERE state < 3 AND state = 0 AND lease_until <= ?1 AND seq > ?2
    ORDER BY seq
    LIMIT 1
)
RETURNING seq, key, until, method, uri, headers, body
