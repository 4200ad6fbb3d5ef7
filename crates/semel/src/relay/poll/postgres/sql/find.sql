-- One event by its id: first among the parked events, then among the newest.
SELECT * FROM (
    (
        SELECT p.id::text, p.topic, p.type, p.key, p.aggregate_type, p.aggregate_id, p.content_type,
               p.headers::text, p.idempotency_key, p.trace_parent, p.intent, p.payload,
               (extract(epoch FROM p.made_at) * 1000)::bigint,
               CASE WHEN p.error IS NULL THEN 'held' ELSE 'parked' END, p.error, p.parked_key
        FROM semel_outbox_parked p WHERE p.id = $1::text::uuid
    )
    UNION ALL
    (
        SELECT o.id::text, o.topic, o.type, o.key, o.aggregate_type, o.aggregate_id, o.content_type,
               o.headers::text, o.idempotency_key, o.trace_parent, o.intent, o.payload,
               (extract(epoch FROM o.made_at) * 1000)::bigint, {standing}, NULL, NULL
        FROM (SELECT * FROM semel_outbox ORDER BY seq DESC LIMIT {scanned}) o
        LEFT JOIN semel_outbox_cursor c
            ON c.lane = abs(hashtext(coalesce(o.key, o.aggregate_id, o.id::text)) % 16)
        WHERE o.id = $1::text::uuid
    )
) found LIMIT 1
