-- A person has decided: these tables are the ones, everything in them is to be published again ($2 false) or is taken
-- for published ($2 true). Rows that came with a dump may have ids of transactions that are still to come here; they
-- become the oldest.
WITH older AS (
    UPDATE semel_outbox SET xid = '3' WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())
),
-- What a slot has read is of another log.
slots AS (DELETE FROM semel_outbox_slot)
UPDATE semel_outbox_cursor
SET epoch = epoch + 1, owner = NULL, lineage = $1::text, high = NULL, after_seq = 0, until_seq = NULL,
    low = CASE WHEN $2::boolean THEN pg_current_snapshot() ELSE '3:3:'::pg_snapshot END
RETURNING lane
