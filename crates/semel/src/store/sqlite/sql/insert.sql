-- The first claim of an intent. Its epoch also orders the list.
INSERT INTO intent (
    seq, id, state, effect, epoch, attempts, lease_until, created_at, changed_at,
    owner, recipe, fingerprint, operation, scope, key, decision, expires_at
)
VALUES (?1, ?2, ?3, ?4, ?1, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
