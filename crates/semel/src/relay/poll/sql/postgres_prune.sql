-- Empties one table of the ring, if everything in it is published and old enough. What every lane's low sees is
-- published or parked. Looked at twice: first without the lock, because everybody who comes after one who waits for it
-- waits too, and most of the time there is nothing to be emptied; then under it: nobody is writing then, and whoever
-- wrote has committed or is gone. Whoever holds it is not waited for longer than an instant.
DO $prune$
BEGIN
    FOR look IN 1..2 LOOP
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
        IF look = 1 THEN
            PERFORM set_config('lock_timeout', '50', true);
            LOCK TABLE semel_outbox_{part} IN ACCESS EXCLUSIVE MODE;
        END IF;
    END LOOP;
    TRUNCATE semel_outbox_{part};
END
$prune$
