-- Events to be published, version 1. Needs PostgreSQL 13. No name has a schema: the search_path decides.

-- One row: the version and the lineage of these tables. A cursor written under another lineage belongs to other tables.
CREATE TABLE semel_outbox_meta (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version  integer NOT NULL,
    lineage  uuid    NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO semel_outbox_meta (version) VALUES (1);

-- CACHE 1: a session with cached numbers would have its second event published before another session's first.
CREATE SEQUENCE semel_outbox_seq AS bigint CACHE 1;

-- Insert-only. A ring of four tables, each filled with 2^20 events in turn: retention empties old tables with TRUNCATE,
-- and vacuum has nothing to do.
--
-- From any language: INSERT INTO semel_outbox (topic, type, key, payload) VALUES (…). The rest has defaults.
CREATE TABLE semel_outbox (
    seq             bigint      NOT NULL DEFAULT nextval('semel_outbox_seq'),
    -- The cursor uses this, not the system column xmin, which has the id of a savepoint's subtransaction.
    xid             xid8        NOT NULL DEFAULT pg_current_xact_id(),
    made_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    id              uuid        NOT NULL DEFAULT gen_random_uuid(),
    topic           text        NOT NULL,
    type            text        NOT NULL,
    key             text,                  -- events of one key are published in order; without it, of one aggregate_id
    aggregate_type  text,
    aggregate_id    text,
    content_type    text        NOT NULL DEFAULT 'application/json',
    headers         jsonb,                 -- {"name": "text", …}
    idempotency_key text,                  -- a second event with the same key is left out
    trace_parent    text,                  -- W3C Trace Context
    intent          bytea,                 -- the intent that caused it
    payload         bytea       NOT NULL
) PARTITION BY LIST (((seq >> 20) % 4));

CREATE TABLE semel_outbox_0 PARTITION OF semel_outbox FOR VALUES IN (0);
CREATE TABLE semel_outbox_1 PARTITION OF semel_outbox FOR VALUES IN (1);
CREATE TABLE semel_outbox_2 PARTITION OF semel_outbox FOR VALUES IN (2);
CREATE TABLE semel_outbox_3 PARTITION OF semel_outbox FOR VALUES IN (3);

CREATE INDEX semel_outbox_by_seq ON semel_outbox (seq);
CREATE INDEX semel_outbox_by_xid ON semel_outbox (xid, seq);

-- The idempotency keys of events. A separate table, because a unique index over the ring would have to include its
-- partition expression.
CREATE TABLE semel_outbox_key (
    key     text        COLLATE "C" PRIMARY KEY,
    seq     bigint      NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX semel_outbox_key_by_age ON semel_outbox_key (made_at);

-- Waits for a concurrent append of the same key, then leaves the row out.
CREATE FUNCTION semel_outbox_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO semel_outbox_key (key, seq) VALUES (NEW.idempotency_key, NEW.seq) ON CONFLICT (key) DO NOTHING;
    IF FOUND THEN
        RETURN NEW;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER semel_outbox_once BEFORE INSERT ON semel_outbox
FOR EACH ROW WHEN (NEW.idempotency_key IS NOT NULL) EXECUTE FUNCTION semel_outbox_once();

-- The relays that poll, each with a lease that it renews every few seconds. When a lease expires, others take over its
-- partitions.
CREATE TABLE semel_outbox_relay (
    id          uuid        PRIMARY KEY,
    lease_until timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The polling cursor, in 16 outbox partitions (column lane): a hash of the key that an event is ordered by. A partition
-- scans the window of what `high` sees and `low` does not, by seq: everything up to after_seq is published, and the
-- events after after_seq up to until_seq are in flight. A relay changes a row only under its own epoch (fencing). No
-- index: there are 16 rows, and while any transaction is open, a unique index would scan all their versions at each
-- update.
CREATE TABLE semel_outbox_cursor (
    lane      smallint    NOT NULL,
    epoch     bigint      NOT NULL DEFAULT 0,
    owner     uuid,
    lineage   text,                                -- the tables and the cluster that the snapshots belong to
    low       pg_snapshot NOT NULL DEFAULT '3:3:', -- sees nothing
    high      pg_snapshot,
    after_seq bigint      NOT NULL DEFAULT 0,
    until_seq bigint
) WITH (fillfactor = 50);
ALTER TABLE semel_outbox_cursor REPLICA IDENTITY FULL;
INSERT INTO semel_outbox_cursor (lane) SELECT generate_series(0, 15);

-- The CDC position of a replication slot: everything up to `acked` is published, and of the next transaction the events
-- up to `place`. The relay confirms a position to the server only after it is written here; a slot that is further was
-- created or moved by something else. walk: the snapshot that sees the events, while they are published from the table
-- because the log no longer has them.
CREATE TABLE semel_outbox_slot (
    name       text        PRIMARY KEY,
    lineage    text        NOT NULL,               -- the tables, the cluster and its timeline
    acked      pg_lsn      NOT NULL,
    commit_lsn pg_lsn      NOT NULL,
    place      bigint      NOT NULL,
    walk       pg_snapshot,
    noted_at   timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- Parked keys: one of their events could not be published. due_at: time of the next retry; null: no automatic retry.
CREATE TABLE semel_outbox_parked_key (
    key    text        COLLATE "C" PRIMARY KEY,
    lane   smallint    NOT NULL,
    tries  integer     NOT NULL DEFAULT 0,
    due_at timestamptz
);
CREATE INDEX semel_outbox_parked_by_due ON semel_outbox_parked_key (due_at);

-- Parked and held events, complete, in publishing order (n). The first event of a key has the error.
CREATE TABLE semel_outbox_parked (
    n               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    parked_key      text        COLLATE "C" NOT NULL,
    error           text,
    parked_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    made_at         timestamptz NOT NULL,
    id              uuid        NOT NULL,
    topic           text        NOT NULL,
    type            text        NOT NULL,
    key             text,
    aggregate_type  text,
    aggregate_id    text,
    content_type    text        NOT NULL,
    headers         jsonb,
    idempotency_key text,
    trace_parent    text,
    intent          bytea,
    payload         bytea       NOT NULL
);
CREATE INDEX semel_outbox_parked_by_key ON semel_outbox_parked (parked_key, n);
CREATE INDEX semel_outbox_parked_by_id ON semel_outbox_parked (id);
