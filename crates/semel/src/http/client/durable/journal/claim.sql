-- Also a held intent: a caller that sends it again has decided so.
UPDATE intent SET state = 0, owner = ?2, lease_until = ?3, changed_at = ?4 WHERE key = ?1
