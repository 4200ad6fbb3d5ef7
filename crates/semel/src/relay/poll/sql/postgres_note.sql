-- What is about to be sent, before it is. All of these lanes under their epochs, or none.
WITH mine AS MATERIALIZED (
    SELECT c.lane FROM semel_outbox_cursor c
    JOIN unnest($1::smallint[], $2::bigint[]) AS m (lane, epoch) ON c.lane = m.lane AND c.epoch = m.epoch
    ORDER BY c.lane FOR UPDATE OF c
)
UPDATE semel_outbox_cursor c
SET low = $3::text::pg_snapshot, high = $4::text::pg_snapshot, after_seq = $5::bigint, until_seq = $6::bigint
WHERE c.lane IN (SELECT lane FROM mine) AND (SELECT count(*) FROM mine) = cardinality($1::smallint[])
RETURNING c.lane
