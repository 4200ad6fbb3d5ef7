-- A chunk of a window: events of these partitions (column `lane`) after $3 and up to $4, by seq, at most $5 events and
-- $6 bytes of payload. Transactions that began after `low` are found by xid if they are few, by seq if they are many.
WITH given AS MATERIALIZED (
    SELECT $1::text::pg_snapshot AS low, $2::text::pg_snapshot AS high
),
-- Transactions in progress at `low` that had committed by `high`: the first few rows of each after $3, by the index on
-- (xid, seq). Reading them all together would need a sort, and one may be a bulk load of millions of rows. It compares
-- pairs because with `xid =` the planner may scan the index on seq.
late AS MATERIALIZED (
    SELECT o.* FROM given CROSS JOIN LATERAL pg_snapshot_xip(given.low) AS l (xid) CROSS JOIN LATERAL (
        SELECT o.* FROM semel_outbox o
        WHERE (o.xid, o.seq) > (l.xid, $3::bigint) AND (o.xid, o.seq) <= (l.xid, $4::bigint)
            AND ($7::smallint[] IS NULL
                 OR abs(hashtext(coalesce(o.key, o.aggregate_id, o.id::text)) % 16) = ANY ($7::smallint[]))
        ORDER BY o.xid, o.seq LIMIT $5::bigint
    ) o
    WHERE pg_visible_in_snapshot(l.xid, given.high)
    ORDER BY o.seq LIMIT $5::bigint
),
-- If the late rows fill the chunk, it ends at the last of them.
reach AS MATERIALIZED (
    SELECT CASE WHEN count(*) < $5::bigint THEN $4::bigint ELSE max(seq) END AS last FROM late
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
    (SELECT * FROM late)
),
fitting AS (
    SELECT f.*, sum(octet_length(f.payload)) OVER (ORDER BY f.seq) - octet_length(f.payload) AS bytes_before
    FROM found f ORDER BY f.seq LIMIT $5::bigint
)
SELECT o.seq, o.id::text, o.topic, o.type, o.key, o.aggregate_type, o.aggregate_id, o.content_type, o.headers::text,
       o.idempotency_key, o.trace_parent, o.intent, o.payload,
       EXISTS (SELECT FROM semel_outbox_parked_key p WHERE p.key = coalesce(o.key, o.aggregate_id, o.id::text)) AS held
FROM fitting o WHERE o.bytes_before < $6::bigint ORDER BY o.seq
