SET @semel_lock_wait = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = 1;
INSERT INTO semel_intent (
    id, state, effect, epoch, attempts, lease_until, created_at, changed_at,
    owner, recipe, fingerprint, operation, scope, `key`
)
VALUES (?1, 0, ?3, 0, 0, 0, 0, 0, ?2, ?4, ?5, 0, ?6, ?7)
ON DUPLICATE KEY UPDATE id = id;
SET SESSION innodb_lock_wait_timeout = @semel_lock_wait;
SELECT CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 AS SIGNED),
       state, effect, epoch, lease_until, expires_at, owner, recipe, fingerprint, outcome
FROM semel_intent
WHERE id = ?1
FOR UPDATE
