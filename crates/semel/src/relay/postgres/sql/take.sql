-- Claims partitions (column `lane`) that have no owner, whose owner's lease has expired, or that this relay already
-- owned. The new epoch fences the previous owner.
UPDATE semel_outbox_cursor c
SET owner = $1::text::uuid, epoch = c.epoch + 1, lineage = coalesce(c.lineage, $3::text)
WHERE c.lane = ANY ($2::smallint[])
    AND (c.owner IS NULL OR c.owner = $1::text::uuid OR NOT EXISTS (
        SELECT FROM semel_outbox_relay r WHERE r.id = c.owner AND r.lease_until > clock_timestamp()
    ))
RETURNING c.lane, c.epoch, c.low::text, c.high::text, c.after_seq, c.until_seq, c.ctid::text
