-- Claims all partitions (column `lane`) and a lease, if each partition has no owner, is ours, or its owner's lease has
-- expired. All or none, because the log cannot be shared. The new epoch fences the previous owner.
WITH free AS MATERIALIZED (
    SELECT c.lane FROM semel_outbox_cursor c
    WHERE c.owner IS NULL OR c.owner = $1::text::uuid OR NOT EXISTS (
        SELECT FROM semel_outbox_relay r WHERE r.id = c.owner AND r.lease_until > clock_timestamp()
    )
    ORDER BY c.lane FOR UPDATE OF c
),
all_of_them AS MATERIALIZED (SELECT count(*) = (SELECT count(*) FROM semel_outbox_cursor) AS free FROM free),
beat AS (
    INSERT INTO semel_outbox_relay (id, lease_until)
    SELECT $1::text::uuid, clock_timestamp() + $2::bigint * interval '1 millisecond' FROM all_of_them WHERE free
    ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until
)
UPDATE semel_outbox_cursor c
SET owner = $1::text::uuid, epoch = c.epoch + 1, lineage = coalesce(c.lineage, $3::text)
WHERE (SELECT free FROM all_of_them)
RETURNING c.lane, c.epoch, c.low::text, c.high::text, c.after_seq, c.until_seq, c.ctid::text
