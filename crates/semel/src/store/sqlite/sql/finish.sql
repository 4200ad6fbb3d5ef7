UPDATE intent SET state = ?2, changed_at = ?3, expires_at = ?4, outcome = ?5, effect = ?6 WHERE seq = ?1
