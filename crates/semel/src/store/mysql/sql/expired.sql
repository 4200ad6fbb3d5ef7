-- Candidates of a sweep, read without a lock.
SELECT id FROM semel_intent FORCE INDEX (semel_intent_expiry)
WHERE state IN (2, 3, 4) AND expires_at <= {clock}
LIMIT {limit}
