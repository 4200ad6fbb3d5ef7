SELECT seq, state, effect, epoch, attempts, lease_until, created_at, changed_at, expires_at,
       owner, recipe, fingerprint, decision, outcome, scope, name, key
FROM intent JOIN operation ON operation.n = intent.operation
WHERE id = ?1
