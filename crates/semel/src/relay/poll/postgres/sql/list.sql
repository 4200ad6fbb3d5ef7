-- Lists events with their status, out of the first {scanned}. In each partition (column `lane`), events visible in `low` are
-- published, and so are events visible in `high` up to after_seq; those up to until_seq are being sent.
WITH scanned AS (
    SELECT o.seq, o.xid, o.id, o.topic, o.type, coalesce(o.key, o.aggregate_id) AS key, o.made_at,
           octet_length(o.payload) AS bytes
    FROM semel_outbox o WHERE {from} ORDER BY {order} LIMIT {scanned}
),
listed AS (
    SELECT o.*, {standing} AS standing
    FROM scanned o
    LEFT JOIN semel_outbox_cursor c ON c.lane = abs(hashtext(coalesce(o.key, o.id::text)) % 16)
    WHERE ($1::text IS NULL OR o.topic = $1::text) AND ($2::text IS NULL OR o.key = $2::text)
)
SELECT id::text, topic, type, key, (extract(epoch FROM made_at) * 1000)::bigint, bytes::bigint, standing
FROM listed o WHERE {wanted} ORDER BY {order} LIMIT $3::bigint
