-- By primary key, in the same order as claims lock: no deadlock between the two. A locked row is in use and is skipped.
START TRANSACTION;
SELECT id FROM semel_intent FORCE INDEX (PRIMARY)
WHERE id IN ({ids}) AND state >= 2 AND expires_at <= {clock}
ORDER BY id FOR UPDATE SKIP LOCKED
