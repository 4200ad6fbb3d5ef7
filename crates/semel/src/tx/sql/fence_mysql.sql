SET @semel_ours = 0
    /*!80000 , @semel_lock_wait = CAST(COALESCE(@semel_lock_wait, @@SESSION.innodb_lock_wait_timeout) AS UNSIGNED),
    SESSION innodb_lock_wait_timeout = 1 */;
/*M! SET STATEMENT innodb_lock_wait_timeout = 1 FOR */
UPDATE semel_intent
SET lease_until = CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 AS SIGNED) + ?4
WHERE id = ?1 AND owner = ?2 AND epoch = ?3 AND state = 0;
SET @semel_ours = 0
    /*!80000 , SESSION innodb_lock_wait_timeout = @semel_lock_wait, @semel_lock_wait = NULL */;
SELECT 1 INTO @semel_ours FROM semel_intent WHERE id = ?1 AND owner = ?2 AND epoch = ?3 AND state = 0 FOR UPDATE;
UPDATE semel_phase SET attempt = ?5 WHERE id = ?1 AND @semel_ours = 1;
SELECT done FROM semel_phase WHERE id = ?1 AND @semel_ours = 1 FOR UPDATE
