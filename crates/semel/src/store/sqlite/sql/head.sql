SELECT seq, state, effect, epoch, attempts, lease_until, created_at, changed_at, expires_at,
       owner, recipe, fingerprint, decision, outcome
FROM intent
WHERE id = ?1
