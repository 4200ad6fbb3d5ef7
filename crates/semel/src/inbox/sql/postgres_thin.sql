-- Marks without an index of their own for pruning. Version 3. Consumers wait while it runs: it goes once through all marks.
SET LOCAL statement_timeout = 0;

-- What a batch was about, its marks and what it found marked: sixteen bytes each. Not compressed, there is nothing in it.
ALTER TABLE semel_inbox_batch ADD COLUMN ids bytea NOT NULL DEFAULT ''::bytea;
ALTER TABLE semel_inbox_batch ALTER COLUMN ids SET STORAGE EXTERNAL;
UPDATE semel_inbox_batch b SET ids = m.ids
FROM (SELECT batch, string_agg(id, ''::bytea) AS ids FROM semel_inbox GROUP BY batch) m
WHERE m.batch = b.batch;
-- Who began to mark before this and waited for it fails once, instead of leaving marks that no batch names.
ALTER TABLE semel_inbox_batch ALTER COLUMN ids DROP DEFAULT;
DROP INDEX semel_inbox_of;

-- Marks messages, given as their ids one after the other and in order. Says which were not marked before. A transaction
-- that has marked one of them and is still open is waited for.
--
-- A row that looks out for a conflict costs twice what a row costs. So many are inserted as if all were new, and only
-- when one was not, one by one; a few are not worth the savepoint.
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
            -- None of them is in. On with it as below.
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
