-- By primary key, as claims lock: the two never wait for each other crosswise. What is held is in use.
START TRANSACTION;
SELECT id FROM semel_intent FORCE INDEX (PRIMARY)
WHERE id IN ({ids}) AND state >= 2 AND expires_at <= {clock}
ORDER BY id FOR UPDATE SKIP LOCKED
