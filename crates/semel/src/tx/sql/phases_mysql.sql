INSERT INTO semel_phase (id, done, attempt, plan, results) VALUES (?1, 0, ?2, '', '')
ON DUPLICATE KEY UPDATE
    attempt = ?2, done = IF(?3 = 0, 0, done), plan = IF(?3 = 0, '', plan), results = IF(?3 = 0, '', results);
SELECT done, CAST(plan AS BINARY), results FROM semel_phase WHERE id = ?1 FOR UPDATE
