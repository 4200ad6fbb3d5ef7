-- Acks a chunk: moves the cursor past what was published. Changes all of these partitions (column `lane`) under their
-- epochs, or none. The commit does not wait for the disk: if the server crashes, the same chunk is only sent again.
WITH mine AS MATERIALIZED (
    SELECT c.lane, set_config('synchronous_commit', 'off', true) FROM semel_outbox_cursor c
    WHERE c.ctid = ANY ($4::text[]::tid[])
        AND c.epoch = ($2::bigint[])[array_position($1::smallint[], c.lane)]
    FOR UPDATE
)
UPDATE semel_outbox_cursor c SET after_seq = c.until_seq, until_seq = NULL
WHERE c.ctid = ANY ($4::text[]::tid[]) AND (SELECT count(*) FROM mine) = cardinality($1::smallint[])
    AND c.until_seq = $3::bigint
RETURNING c.lane, c.ctid::text
