-- The same as the function semel_tx_put of PostgreSQL; ?15 is the new epoch.
INSERT INTO semel_intent (
    seq, id, state, effect, epoch, attempts, lease_until, created_at, changed_at, expires_at,
    owner, recipe, fingerprint, operation, scope, key, outcome
)
SELECT ?15, ?1, ?4, ?5, ?15, 1, now + ?7, now, now, CASE WHEN ?4 >= 2 THEN now + ?8 END,
       ?6, ?10, ?9, ?11, ?12, ?13, ?14
FROM (SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) AS now)
WHERE true
ON CONFLICT (id) DO UPDATE SET
    seq = CASE WHEN ?3 = 0 THEN excluded.seq ELSE seq END,
    epoch = max(excluded.epoch, epoch + 1),
    lease_until = excluded.lease_until,
    created_at = CASE WHEN ?3 = 0 THEN excluded.created_at ELSE created_at END,
    changed_at = excluded.changed_at,
    expires_at = excluded.expires_at,
    recipe = excluded.recipe,
    attempts = CASE WHEN ?3 = 0 THEN 1 ELSE attempts + 1 END,
    state = excluded.state,
    effect = excluded.effect,
    owner = excluded.owner,
    fingerprint = excluded.fingerprint,
    decision = CASE WHEN ?3 = 0 THEN NULL ELSE decision END,
    outcome = excluded.outcome
WHERE epoch = ?2
RETURNING epoch
