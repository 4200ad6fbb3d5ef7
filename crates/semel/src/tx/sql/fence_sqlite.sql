UPDATE semel_intent
SET lease_until = CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?4
WHERE id = ?1 AND owner = ?2 AND epoch = ?3 AND state = 0
RETURNING (SELECT count(*) FROM semel_phase p WHERE p.id = ?1)
