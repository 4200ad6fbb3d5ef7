-- Parked and held events, of one key or of all.
SELECT p.id::text, p.topic, p.type, p.key, p.aggregate_type, p.aggregate_id, p.content_type, p.headers::text,
       p.idempotency_key, p.trace_parent, p.intent, p.payload, p.parked_key, p.error,
       (extract(epoch FROM p.parked_at) * 1000)::bigint
FROM semel_outbox_parked p WHERE $1::text IS NULL OR p.parked_key = $1::text
ORDER BY p.n LIMIT $2::bigint
