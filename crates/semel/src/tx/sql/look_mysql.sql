SET @semel_asked = 1
    /*!80000 , @semel_lock_wait = CAST(COALESCE(@semel_lock_wait, @@SESSION.innodb_lock_wait_timeout) AS UNSIGNED),
    SESSION innodb_lock_wait_timeout = 1 */;
/*M! SET STATEMENT innodb_lock_wait_timeout = 1 FOR */
INSERT INTO semel_intent (
    id, state, effect, epoch, attempts, lease_until, created_at, changed_at,
    owner, recipe, fingerprint, operation, scope, `key`
)
VALUES (?1, 0, ?3, 0, 0, 0, 0, 0, ?2, ?4, ?5, 0, ?6, ?7)
ON DUPLICATE KEY UPDATE id = id;
SET @semel_asked = NULL
    /*!80000 , SESSION innodb_lock_wait_timeout = @semel_lock_wait, @semel_lock_wait = NULL */;
SELECT CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 AS SIGNED),
       state, effect, epoch, lease_until, expires_at, owner, recipe, fingerprint, outcome
FROM semel_intent
WHERE id = ?1
FOR UPDATE
