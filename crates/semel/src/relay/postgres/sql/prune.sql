-- Retention: truncates one table of the ring if everything in it is published or parked (visible in `low` of every
-- partition, column `lane`) and old enough. Checks twice. First without the lock: a waiting ACCESS EXCLUSIVE lock
-- blocks everyone queued behind it, and mostly there is nothing to truncate. Then with the lock: no writer is active,
-- and every earlier writer has committed or rolled back. lock_timeout (50 ms) bounds the wait for the lock.
DO $prune$
BEGIN
    FOR pass IN 1..2 LOOP
        IF EXISTS (
                SELECT FROM semel_outbox_cursor c
                WHERE EXISTS (SELECT FROM semel_outbox_{part} WHERE xid >= pg_snapshot_xmax(c.low))
                    OR EXISTS (SELECT FROM semel_outbox_{part} WHERE xid = ANY (ARRAY(SELECT pg_snapshot_xip(c.low))))
            )
            OR NOT coalesce(
                (SELECT made_at FROM semel_outbox_{part} ORDER BY seq DESC LIMIT 1)
                    < clock_timestamp() - {age_ms} * interval '1 millisecond',
                false
            )
        THEN
            RETURN;
        END IF;
        IF pass = 1 THEN
            PERFORM set_config('lock_timeout', '50', true);
            LOCK TABLE semel_outbox_{part} IN ACCESS EXCLUSIVE MODE;
        END IF;
    END LOOP;
    TRUNCATE semel_outbox_{part};
END
$prune$
