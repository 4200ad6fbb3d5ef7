UPDATE intent SET lease_until = ?3, changed_at = ?4 WHERE key = ?1 AND owner = ?2 AND state = 0
