SET @semel_result = ?5;
UPDATE semel_phase
SET done = done + 1, plan = ?4, results = CONCAT(results, @semel_result)
WHERE id = ?1 AND attempt = ?2 AND done = ?3
  -- CONCAT makes anything longer NULL, and a packet with it could not be read again.
  AND LENGTH(results) + LENGTH(@semel_result) + 4096 <= @@max_allowed_packet;
SET @semel_result = NULL;
SELECT done FROM semel_phase WHERE id = ?1 AND attempt = ?2 FOR UPDATE
