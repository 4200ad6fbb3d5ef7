-- A chunk of a window: events of these lanes behind $3 and up to $4, by seq, as many as $5 with $6 bytes of payload.
-- Those that began after low are found by xid where they are few, by seq where they are many.
WITH given AS MATERIALIZED (
    SELECT $1::text::pg_snapshot AS low, $2::text::pg_snapshot AS high
),
found AS (
    (
        SELECT o.* FROM semel_outbox o
        WHERE {fresh}
            AND pg_visible_in_snapshot(o.xid, (SELECT high FROM given))
            AND ($7::smallint[] IS NULL
                 OR abs(hashtext(coalesce(o.key, o.aggregate_id, o.id::text)) % 16) = ANY ($7::smallint[]))
        ORDER BY {order} LIMIT $5::bigint
    )
    UNION ALL
    (
        SELECT o.* FROM semel_outbox o
        WHERE o.xid = ANY (ARRAY(
                SELECT late FROM given, pg_snapshot_xip(low) AS late WHERE pg_visible_in_snapshot(late, high)
            ))
            AND o.seq + 0 > $3::bigint AND o.seq + 0 <= $4::bigint
            AND ($7::smallint[] IS NULL
                 OR abs(hashtext(coalesce(o.key, o.aggregate_id, o.id::text)) % 16) = ANY ($7::smallint[]))
        ORDER BY o.seq + 0 LIMIT $5::bigint
    )
),
fitting AS (
    SELECT f.*, sum(octet_length(f.payload)) OVER (ORDER BY f.seq) - octet_length(f.payload) AS bytes_before
    FROM found f ORDER BY f.seq LIMIT $5::bigint
)
SELECT o.seq, o.id::text, o.topic, o.type, o.key, o.aggregate_type, o.aggregate_id, o.content_type, o.headers::text,
       o.idempotency_key, o.trace_parent, o.intent, o.payload,
       EXISTS (SELECT FROM semel_outbox_parked_key p WHERE p.key = coalesce(o.key, o.aggregate_id, o.id::text)) AS held
FROM fitting o WHERE o.bytes_before < $6::bigint ORDER BY o.seq
