SET @semel_now = NULL
    /*!80000 , SESSION innodb_lock_wait_timeout = CAST(COALESCE(@semel_lock_wait, @@SESSION.innodb_lock_wait_timeout) AS UNSIGNED),
    @semel_lock_wait = NULL */;
SELECT CAST(@@innodb_rollback_on_timeout AS SIGNED)
