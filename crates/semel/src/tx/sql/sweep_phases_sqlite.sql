DELETE FROM semel_phase
WHERE id IN (
    SELECT id FROM semel_intent INDEXED BY semel_intent_expiry
    WHERE expires_at IS NOT NULL AND expires_at <= ?1 AND state >= 2
    ORDER BY expires_at, seq
    LIMIT ?2
)
