-- Parked events due for a retry: the first few of each due key, in order, up to the size limit. A due key that has no
-- parked events left is returned too, without an event.
WITH due AS MATERIALIZED (
    SELECT key, lane, due_at FROM semel_outbox_parked_key
    WHERE due_at <= clock_timestamp() AND lane = ANY ($1::smallint[])
    ORDER BY due_at LIMIT 100
),
found AS (
    SELECT d.key AS due_key, d.lane, d.due_at, p.*
    FROM due d LEFT JOIN LATERAL (
        SELECT * FROM semel_outbox_parked p WHERE p.parked_key = d.key ORDER BY p.n LIMIT $2::bigint
    ) p ON true
),
fitting AS (
    SELECT f.*,
           coalesce(sum(octet_length(f.payload)) OVER (ORDER BY f.n) - octet_length(f.payload), 0) AS bytes_before
    FROM found f
)
SELECT coalesce(o.n, 0), o.id::text, o.topic, o.type, o.key, o.aggregate_type, o.aggregate_id, o.content_type,
       o.headers::text, o.idempotency_key, o.trace_parent, o.intent, o.payload, o.due_key, o.lane,
       (extract(epoch FROM o.due_at) * 1000000)::bigint
FROM fitting o WHERE o.bytes_before < $3::bigint ORDER BY o.n
