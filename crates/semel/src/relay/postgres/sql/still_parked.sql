-- Parked events by their numbers, with the same columns as due.sql.
SELECT o.n, o.id::text, o.topic, o.type, o.key, o.aggregate_type, o.aggregate_id, o.content_type,
       o.headers::text, o.idempotency_key, o.trace_parent, o.intent, o.payload, k.key, k.lane,
       (extract(epoch FROM k.due_at) * 1000000)::bigint
FROM semel_outbox_parked o JOIN semel_outbox_parked_key k ON k.key = o.parked_key
WHERE o.n = ANY ($1::bigint[]) ORDER BY o.n
