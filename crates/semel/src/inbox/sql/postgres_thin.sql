-- Drops the index of marks by batch that only pruning used. Version 3. Consumers wait while it runs: it reads all marks
-- once.
SET LOCAL statement_timeout = 0;

-- The ids of a batch, its marks and its duplicates: sixteen bytes each. Not compressed: digests do not compress.
ALTER TABLE semel_inbox_batch ADD COLUMN ids bytea NOT NULL DEFAULT ''::bytea;
ALTER TABLE semel_inbox_batch ALTER COLUMN ids SET STORAGE EXTERNAL;
UPDATE semel_inbox_batch b SET ids = m.ids
FROM (SELECT batch, string_agg(id, ''::bytea) AS ids FROM semel_inbox GROUP BY batch) m
WHERE m.batch = b.batch;
-- A transaction that began to mark before this migration fails once, instead of leaving marks that no batch lists.
ALTER TABLE semel_inbox_batch ALTER COLUMN ids DROP DEFAULT;
DROP INDEX semel_inbox_of;

-- Marks messages, given as their sorted ids in one string, and returns which were not marked before. Waits for an open
-- transaction that has marked one of them.
--
-- ON CONFLICT doubles the cost of a row. So a large batch is inserted as if all were new, and with ON CONFLICT only if
-- one was not. For a small batch the savepoint is not worth it.
CREATE OR REPLACE FUNCTION semel_inbox_mark(
    p_consumer text,
    p_source   text,
    p_ids      bytea,
    OUT o_batch bigint,
    OUT o_fresh bytea
)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO semel_inbox_batch (began_at, messages, consumer, source, ids)
    VALUES (
        floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, octet_length(p_ids) / 16, p_consumer, p_source,
        p_ids
    )
    RETURNING batch INTO o_batch;
    IF octet_length(p_ids) >= 16 * 16 THEN
        BEGIN
            INSERT INTO semel_inbox (batch, id)
            SELECT o_batch, substring(p_ids FROM g * 16 + 1 FOR 16)
            FROM generate_series(0, octet_length(p_ids) / 16 - 1) g;
            o_fresh := p_ids;
            RETURN;
        EXCEPTION WHEN unique_violation THEN
            -- None was inserted. Go on with ON CONFLICT below.
        END;
    END IF;
    WITH put AS (
        INSERT INTO semel_inbox (batch, id)
        SELECT o_batch, substring(p_ids FROM g * 16 + 1 FOR 16)
        FROM generate_series(0, octet_length(p_ids) / 16 - 1) g
        ON CONFLICT (id) DO NOTHING
        RETURNING id
    )
    SELECT string_agg(put.id, ''::bytea) INTO o_fresh FROM put;
END
$$;

UPDATE semel_inbox_meta SET version = 3;
