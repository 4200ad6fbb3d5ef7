-- How many partitions (column `lane`) this relay could take. Locks nothing, because a standby relay asks all the time.
SELECT count(*) FROM semel_outbox_cursor c
WHERE c.owner IS NULL OR c.owner = $1::text::uuid OR NOT EXISTS (
    SELECT FROM semel_outbox_relay r WHERE r.id = c.owner AND r.lease_until > clock_timestamp()
)
