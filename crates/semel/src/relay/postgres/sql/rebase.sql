-- Rebase, decided by an operator: accepts these tables, and either publishes everything in them again ($2 false) or
-- marks everything as published ($2 true). Rows restored from a dump may carry transaction ids that are in the future
-- here; they get the oldest id.
WITH older AS (
    UPDATE semel_outbox SET xid = '3' WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())
),
-- Recorded slot positions belong to another log.
slots AS (DELETE FROM semel_outbox_slot)
UPDATE semel_outbox_cursor
SET epoch = epoch + 1, owner = NULL, lineage = $1::text, high = NULL, after_seq = 0, until_seq = NULL,
    low = CASE WHEN $2::boolean THEN pg_current_snapshot() ELSE '3:3:'::pg_snapshot END
RETURNING lane
