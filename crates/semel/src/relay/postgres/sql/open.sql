-- Counts the events in the window between two snapshots. Without a `high` it takes the snapshot of this statement.
--
-- The first branch finds transactions that began after `low` was taken. The second finds those that were in progress
-- then and have committed since; it never reads those still in progress, however much they have written. Both use the
-- index on xid. Rows not visible in `high` must not count towards the limit: a given `high` may be older than recent
-- commits.
WITH given AS MATERIALIZED (
    SELECT $1::text::pg_snapshot AS low, coalesce($2::text::pg_snapshot, pg_current_snapshot()) AS high
),
found AS MATERIALIZED (
    (
        SELECT seq, xid FROM semel_outbox
        WHERE xid >= (SELECT pg_snapshot_xmax(low) FROM given) AND xid < (SELECT pg_snapshot_xmax(high) FROM given)
            AND pg_visible_in_snapshot(xid, (SELECT high FROM given))
        LIMIT $3::bigint
    )
    UNION ALL
    (
        SELECT seq, xid FROM semel_outbox
        WHERE xid = ANY (ARRAY(
            SELECT late FROM given, pg_snapshot_xip(low) AS late WHERE pg_visible_in_snapshot(late, high)
        ))
        LIMIT $3::bigint
    )
)
SELECT (SELECT high::text FROM given) AS high, count(seq) AS events
FROM found
