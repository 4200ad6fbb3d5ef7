-- No check of the owner: an answer counts even if the claim was lost meanwhile. The first one stays.
UPDATE intent
SET state = 3, owner = NULL, lease_until = 0, changed_at = ?2, attempts = attempts + ?3, why = NULL,
    status = ?4, answer = ?5, answer_body = ?6
WHERE key = ?1 AND state < 3
