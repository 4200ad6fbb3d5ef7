SELECT (SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)),
       state, effect, epoch, lease_until, expires_at, owner, recipe, fingerprint, outcome,
       attempts, created_at, changed_at, scope, operation, key
FROM semel_intent
WHERE id = ?1
