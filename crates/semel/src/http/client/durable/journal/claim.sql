-- Also one that is held: whoever sends it again by hand knows why.
UPDATE intent SET state = 0, owner = ?2, lease_until = ?3, changed_at = ?4 WHERE key = ?1
