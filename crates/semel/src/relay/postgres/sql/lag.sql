-- The backlog of a group of partitions (column `lane`): the rest of its window, and everything after the window.
WITH given AS MATERIALIZED (SELECT $1::text::pg_snapshot AS low, pg_current_snapshot() AS now),
found AS (
    (
        SELECT * FROM semel_outbox WHERE xid >= (SELECT pg_snapshot_xmax(low) FROM given) LIMIT $5::bigint
    )
    UNION ALL
    (
        SELECT * FROM semel_outbox WHERE xid = ANY (ARRAY(
            SELECT late FROM given, pg_snapshot_xip(low) AS late WHERE pg_visible_in_snapshot(late, now)
        ))
        LIMIT $5::bigint
    )
)
SELECT count(*),
       (extract(epoch FROM clock_timestamp() - min(made_at)) * 1000)::bigint,
       (SELECT count(*) FROM (SELECT FROM semel_outbox_parked LIMIT $5::bigint) parked)
FROM found o
WHERE NOT (o.seq <= $3::bigint AND $2::text IS NOT NULL AND pg_visible_in_snapshot(o.xid, $2::text::pg_snapshot))
    AND abs(hashtext(coalesce(o.key, o.aggregate_id, o.id::text)) % 16) = ANY ($4::smallint[])
