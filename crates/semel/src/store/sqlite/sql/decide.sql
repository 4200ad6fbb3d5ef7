UPDATE intent
SET state = ?2, epoch = ?3, owner = ?4, changed_at = ?5, expires_at = ?6, decision = ?7, outcome = ?8,
    effect = ?9
WHERE seq = ?1
