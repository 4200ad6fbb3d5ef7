-- Releases the claim without an answer. Only its owner may: another sender may have claimed it by now.
UPDATE intent
SET state = ?3, owner = NULL, lease_until = 0, changed_at = ?4, attempts = attempts + ?5, why = ?6
WHERE key = ?1 AND owner = ?2 AND state = 0
