-- Records that a window is complete, so that its events may be pruned. Changes all of these partitions (column `lane`)
-- or none.
WITH mine AS MATERIALIZED (
    SELECT c.lane FROM semel_outbox_cursor c
    JOIN unnest($1::smallint[], $2::bigint[]) AS m (lane, epoch) ON c.lane = m.lane AND c.epoch = m.epoch
    ORDER BY c.lane FOR UPDATE OF c
)
UPDATE semel_outbox_cursor c SET low = $3::text::pg_snapshot, high = NULL, after_seq = 0, until_seq = NULL
WHERE c.lane IN (SELECT lane FROM mine) AND (SELECT count(*) FROM mine) = cardinality($1::smallint[])
RETURNING c.lane, c.ctid::text
