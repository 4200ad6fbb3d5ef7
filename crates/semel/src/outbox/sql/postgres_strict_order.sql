-- Strict order, for a polled outbox: whoever appends to a key keeps others from appending to it until the transaction has
-- ended. Events of a key are then published in the order of their commits, also where an event was appended before the row
-- it is about was locked: two transactions that do so in turn wait for each other, and PostgreSQL ends one of them (40P01).
CREATE OR REPLACE FUNCTION semel_outbox_in_order() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    drawn CONSTANT bigint := NEW.seq;
BEGIN
    -- Such locks are the whole database's: this table's number keeps the keys of several outboxes apart.
    PERFORM pg_advisory_xact_lock(
        hashtextextended(coalesce(NEW.key, NEW.aggregate_id), 'semel_outbox'::regclass::oid::bigint)
    );
    -- The number was drawn before the wait, and who had the key meanwhile may have drawn higher ones.
    IF pg_sequence_last_value('semel_outbox_seq') IS DISTINCT FROM drawn THEN
        NEW.seq := nextval('semel_outbox_seq');
        -- A trigger cannot have the row go to another table of the ring.
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
        -- Its name comes before semel_outbox_once: that one notes the number.
        CREATE TRIGGER semel_outbox_in_order BEFORE INSERT ON semel_outbox
        FOR EACH ROW WHEN (coalesce(NEW.key, NEW.aggregate_id) IS NOT NULL)
        EXECUTE FUNCTION semel_outbox_in_order();
    END IF;
END
$$;
