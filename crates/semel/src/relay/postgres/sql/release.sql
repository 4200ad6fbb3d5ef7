-- Releases partitions (column `lane`) that this relay still owns under these epochs.
UPDATE semel_outbox_cursor c SET owner = NULL
FROM unnest($1::smallint[], $2::bigint[]) AS m (lane, epoch)
WHERE c.lane = m.lane AND c.epoch = m.epoch
RETURNING c.lane
