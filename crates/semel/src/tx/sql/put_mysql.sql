SET @semel_last = LAST_INSERT_ID();
SELECT MIN(n) INTO @semel_operation FROM semel_operation WHERE name = ?11;
INSERT INTO semel_operation (name) SELECT ?11 FROM DUAL WHERE @semel_operation IS NULL;
SET @semel_operation = COALESCE(@semel_operation, LAST_INSERT_ID());
INSERT INTO semel_fence (n) VALUES (NULL);
SET @semel_fence = LAST_INSERT_ID(),
    @semel_epoch = GREATEST(LAST_INSERT_ID() * 1024, COALESCE(?2, 0) + 1),
    @semel_now = CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 AS SIGNED);
DELETE FROM semel_fence WHERE n = @semel_fence;
UPDATE semel_intent
SET state = ?4, effect = ?5, epoch = @semel_epoch, attempts = IF(?3 = 0, 1, attempts + 1),
    lease_until = @semel_now + ?7, created_at = IF(?3 = 0, @semel_now, created_at), changed_at = @semel_now,
    expires_at = IF(?4 >= 2, @semel_now + ?8, NULL), recipe = ?10, fingerprint = ?9,
    operation = @semel_operation, scope = ?12, `key` = ?13,
    decision = IF(?3 = 0, NULL, decision), outcome = ?14
WHERE id = ?1 AND owner = ?6;
SELECT CAST(IF(ROW_COUNT() > 0, @semel_epoch, NULL) AS SIGNED);
SET LAST_INSERT_ID = @semel_last
