DELETE FROM semel_phase WHERE id = ?1 AND attempt = ?5;
SET @semel_ours = ROW_COUNT(), @semel_now = CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 AS SIGNED);
UPDATE semel_intent
SET state = 2, changed_at = @semel_now, expires_at = @semel_now + ?3, outcome = ?4
WHERE id = ?1 AND epoch = ?2 AND state = 0 AND @semel_ours = 1;
SELECT CAST(IF(ROW_COUNT() > 0, ?2, NULL) AS SIGNED)
