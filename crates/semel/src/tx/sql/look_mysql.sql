SET @semel_told = 0, @semel_now = CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 AS SIGNED)
    /*!80000 , @semel_lock_wait = COALESCE(@semel_lock_wait, @@SESSION.innodb_lock_wait_timeout),
    SESSION innodb_lock_wait_timeout = 1 */;
SELECT COUNT(*) INTO @semel_told FROM semel_intent
WHERE id = ?1 AND /*!80000 @@transaction_isolation *//*M! @@tx_isolation */ <> 'SERIALIZABLE'
  AND (state = 0 AND lease_until > @semel_now
       OR state IN (2, 3) AND (expires_at IS NULL OR expires_at > @semel_now));
SELECT CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 AS SIGNED),
       state, effect, epoch, lease_until, expires_at, owner, recipe, fingerprint, outcome, 0
FROM semel_intent
WHERE id = ?1 AND @semel_told = 1;
/*M! SET STATEMENT innodb_lock_wait_timeout = 1 FOR */
INSERT INTO semel_intent (
    id, state, effect, epoch, attempts, lease_until, created_at, changed_at,
    owner, recipe, fingerprint, operation, scope, `key`
)
SELECT ?1, 0, ?3, 0, 0, 0, 0, 0, ?2, ?4, ?5, 0, ?6, ?7 FROM DUAL WHERE @semel_told = 0
ON DUPLICATE KEY UPDATE id = semel_intent.id;
SET @semel_now = NULL
    /*!80000 , SESSION innodb_lock_wait_timeout = @semel_lock_wait, @semel_lock_wait = NULL */;
SELECT CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 AS SIGNED),
       state, effect, epoch, lease_until, expires_at, owner, recipe, fingerprint, outcome, 1
FROM semel_intent
WHERE id = ?1 AND @semel_told = 0
FOR UPDATE
