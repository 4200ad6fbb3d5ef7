-- Claims like take.sql, but all of these partitions (column `lane`) or none.
WITH free AS MATERIALIZED (
    SELECT c.lane FROM semel_outbox_cursor c
    WHERE c.lane = ANY ($2::smallint[])
        AND (c.owner IS NULL OR c.owner = $1::text::uuid OR NOT EXISTS (
            SELECT FROM semel_outbox_relay r WHERE r.id = c.owner AND r.lease_until > clock_timestamp()
        ))
    ORDER BY c.lane FOR UPDATE OF c
)
UPDATE semel_outbox_cursor c
SET owner = $1::text::uuid, epoch = c.epoch + 1, lineage = coalesce(c.lineage, $3::text)
WHERE c.lane IN (SELECT lane FROM free) AND (SELECT count(*) FROM free) = cardinality($2::smallint[])
RETURNING c.lane, c.epoch, c.low::text, c.high::text, c.after_seq, c.until_seq, c.ctid::text
