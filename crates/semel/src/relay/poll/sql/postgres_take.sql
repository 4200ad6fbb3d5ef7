-- Takes lanes that are nobody's, whose owner's lease is over, or that were ours before. The new epoch fences whoever
-- had them.
UPDATE semel_outbox_cursor c
SET owner = $1::text::uuid, epoch = c.epoch + 1, lineage = coalesce(c.lineage, $3::text)
WHERE c.lane = ANY ($2::smallint[])
    AND (c.owner IS NULL OR c.owner = $1::text::uuid OR NOT EXISTS (
        SELECT FROM semel_outbox_relay r WHERE r.id = c.owner AND r.lease_until > clock_timestamp()
    ))
RETURNING c.lane, c.epoch, c.low::text, c.high::text, c.after_seq, c.until_seq, c.ctid::text
