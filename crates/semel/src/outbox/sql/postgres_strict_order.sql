-- Strict order, for a polled outbox: an append locks its key against other appends until the transaction ends. Events
-- of a key are then published in the order of their commits, even if an event was appended before the row it is about
-- was locked: two such transactions wait for each other, and PostgreSQL ends one of them as a deadlock (40P01).
CREATE OR REPLACE FUNCTION semel_outbox_in_order() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    drawn CONSTANT bigint := NEW.seq;
BEGIN
    -- Advisory locks are database-wide: this table's oid separates the keys of several outboxes.
    PERFORM pg_advisory_xact_lock(
        hashtextextended(coalesce(NEW.key, NEW.aggregate_id), 'semel_outbox'::regclass::oid::bigint)
    );
    -- The number was drawn before the wait; the transaction that held the key meanwhile may have drawn higher ones.
    IF pg_sequence_last_value('semel_outbox_seq') IS DISTINCT FROM drawn THEN
        NEW.seq := nextval('semel_outbox_seq');
        -- A trigger cannot move the row to another table of the ring.
        IF (NEW.seq >> 20) % 4 <> (drawn >> 20) % 4 THEN
            RAISE EXCEPTION 'semel_outbox went on to its next table while this event waited for its key'
                USING ERRCODE = 'serialization_failure', HINT = 'Run the transaction again.';
        END IF;
    END IF;
    RETURN NEW;
END
$$;
DO $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_trigger WHERE tgrelid = 'semel_outbox'::regclass AND tgname = 'semel_outbox_in_order'
    ) THEN
        -- Triggers fire by name: this one has to run before semel_outbox_once, which stores the number.
        CREATE TRIGGER semel_outbox_in_order BEFORE INSERT ON semel_outbox
        FOR EACH ROW WHEN (coalesce(NEW.key, NEW.aggregate_id) IS NOT NULL)
        EXECUTE FUNCTION semel_outbox_in_order();
    END IF;
END
$$;
