-- A later claim of an intent that may run again. An earlier decision about it is kept.
UPDATE intent
SET state = ?2, effect = ?3, epoch = ?4, attempts = ?5, lease_until = ?6, changed_at = ?7, expires_at = ?11,
    owner = ?8, recipe = ?9, fingerprint = ?10, outcome = NULL
WHERE seq = ?1
