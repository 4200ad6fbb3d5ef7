-- One record, and the time.
SELECT
    clock.now, i.state, i.effect, i.epoch, i.attempts, i.lease_until, i.created_at, i.changed_at, i.expires_at,
    i.owner, i.recipe, i.fingerprint, i.decision, i.outcome, i.scope, operation.name, i.key, i.seq
FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) clock
CROSS JOIN LATERAL (SELECT * FROM semel_intent WHERE semel_intent.id = $1::bytea OFFSET 0) i
CROSS JOIN LATERAL (SELECT name FROM semel_operation WHERE semel_operation.n = i.operation OFFSET 0) operation
