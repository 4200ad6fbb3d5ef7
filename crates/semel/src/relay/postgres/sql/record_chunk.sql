-- Records a chunk before it is sent. Changes all of these partitions (column `lane`) under their epochs, or none.
-- $7: the ctids of their rows.
WITH mine AS MATERIALIZED (
    SELECT c.lane FROM semel_outbox_cursor c
    WHERE c.ctid = ANY ($7::text[]::tid[])
        AND c.epoch = ($2::bigint[])[array_position($1::smallint[], c.lane)]
    FOR UPDATE
)
UPDATE semel_outbox_cursor c
SET low = $3::text::pg_snapshot, high = $4::text::pg_snapshot, after_seq = $5::bigint, until_seq = $6::bigint
WHERE c.ctid = ANY ($7::text[]::tid[]) AND (SELECT count(*) FROM mine) = cardinality($1::smallint[])
RETURNING c.lane, c.ctid::text
