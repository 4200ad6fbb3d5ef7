-- Only finished records have an expiry; `state` is checked all the same, because this deletes for good.
DELETE FROM semel_intent
WHERE seq IN (
    SELECT seq FROM semel_intent INDEXED BY semel_intent_expiry
    WHERE expires_at IS NOT NULL AND expires_at <= ?1 AND state >= 2
    ORDER BY expires_at, seq
    LIMIT ?2
)
