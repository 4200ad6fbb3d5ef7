SELECT key, state, created_at, until, attempts, lease_until, why, method, uri
FROM intent INDEXED BY intent_unfinished
WHERE state < 3
ORDER BY seq
LIMIT ?1
