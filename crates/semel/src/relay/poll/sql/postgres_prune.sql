-- Empties one table of the ring, if everything in it is published and old enough. What every lane's low sees is
-- published or parked. Looked at under the lock: nobody is writing then, and whoever wrote has committed or is gone.
-- Whoever holds it is not waited for longer than an instant, because everybody who comes after us waits too.
DO $prune$
BEGIN
    PERFORM set_config('lock_timeout', '50', true);
    LOCK TABLE semel_outbox_{part} IN ACCESS EXCLUSIVE MODE;
    IF NOT EXISTS (
            SELECT FROM semel_outbox_cursor c
            WHERE EXISTS (SELECT FROM semel_outbox_{part} WHERE xid >= pg_snapshot_xmax(c.low))
                OR EXISTS (SELECT FROM semel_outbox_{part} WHERE xid = ANY (ARRAY(SELECT pg_snapshot_xip(c.low))))
        )
        AND coalesce(
            (SELECT made_at FROM semel_outbox_{part} ORDER BY seq DESC LIMIT 1)
                < clock_timestamp() - {age_ms} * interval '1 millisecond',
            false
        )
    THEN
        TRUNCATE semel_outbox_{part};
    END IF;
END
$prune$
