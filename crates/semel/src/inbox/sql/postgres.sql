-- The inbox: messages that were handled. Version 1. No name has a schema: the search_path finds everything.

-- One row: the version of these tables.
CREATE TABLE semel_inbox_meta (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version  integer NOT NULL,
    lineage  uuid    NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO semel_inbox_meta (version) VALUES (1);

-- One row per transaction that marked messages: consumer, source, when it began and ended (ms). Written once per batch,
-- so that the marks stay small.
CREATE TABLE semel_inbox_batch (
    batch    bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    began_at bigint  NOT NULL,
    ended_at bigint,
    messages integer NOT NULL,
    consumer text    COLLATE "C" NOT NULL,
    source   text    COLLATE "C" NOT NULL
) WITH (fillfactor = 80);
CREATE INDEX semel_inbox_batch_of ON semel_inbox_batch (consumer, began_at);

-- Marks. One row per message and consumer: the sixteen bytes are a digest of both. Only inserted, and deleted
-- after the dedup window.
CREATE TABLE semel_inbox (
    batch bigint NOT NULL,
    id    bytea  NOT NULL PRIMARY KEY
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX semel_inbox_of ON semel_inbox (batch);

-- Results of handling a message, if they are stored.
CREATE TABLE semel_inbox_result (
    id      bytea NOT NULL PRIMARY KEY,
    outcome bytea NOT NULL
);

-- Marks messages, given as their sorted ids in one string, and returns which were not marked before. Waits for an open
-- transaction that has marked one of them.
CREATE FUNCTION semel_inbox_mark(
    p_consumer text,
    p_source   text,
    p_ids      bytea,
    OUT o_batch bigint,
    OUT o_fresh bytea
)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO semel_inbox_batch (began_at, messages, consumer, source)
    VALUES (
        floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, octet_length(p_ids) / 16, p_consumer, p_source
    )
    RETURNING batch INTO o_batch;
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
