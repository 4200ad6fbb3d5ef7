UPDATE intent SET lease_until = ?3 WHERE key = ?1 AND owner = ?2 AND state = 0
