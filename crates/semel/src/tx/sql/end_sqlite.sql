UPDATE semel_intent
SET state = 2,
    changed_at = CAST(unixepoch('subsec') * 1000 AS INTEGER),
    expires_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?3,
    outcome = ?4
WHERE id = ?1 AND epoch = ?2 AND state = 0
RETURNING epoch
