-- The window between two snapshots: what is in it, and how much. With no `high` given: the one of this statement.
--
-- `fresh` began after low was taken. `late` was under way then and is not any more; what still is under way need not
-- be looked at, however much it has written. Both go by the index on xid. What high does not see must not count towards
-- the limit: a high that is given may be older than what was committed since.
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
