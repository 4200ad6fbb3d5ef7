-- Dead letters: messages that could not be handled, for an operator to decide. Version 2.

-- One row per message and consumer. Times are in ms.
CREATE TABLE semel_inbox_dead (
    n               bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The mark the message would have; without an identity, a digest of its position and payload.
    id              bytea   NOT NULL UNIQUE,
    consumer        text    COLLATE "C" NOT NULL,
    source          text    COLLATE "C" NOT NULL,
    -- The encoded identity. NULL: the message has none.
    identity        bytea,
    message_id      text    COLLATE "C",
    topic           text    COLLATE "C" NOT NULL,
    lineage         text    COLLATE "C",
    place           text    COLLATE "C" NOT NULL,
    key             text    COLLATE "C",
    -- JSON: pairs of name and value, in order.
    headers         text    NOT NULL,
    payload         bytea   NOT NULL,
    content_type    text,
    error           text    NOT NULL,
    attempts        bigint  NOT NULL,
    first_failed_at bigint  NOT NULL,
    dead_at         bigint  NOT NULL,
    -- When to redeliver it; while it is leased, when the lease expires. NULL: not at all.
    retry_at        bigint,
    -- Dropped, and why. Its payload and headers are deleted.
    dropped_at      bigint,
    dropped_why     text
);
CREATE INDEX semel_inbox_dead_of ON semel_inbox_dead (consumer, n);
CREATE INDEX semel_inbox_dead_retry ON semel_inbox_dead (consumer, n) WHERE retry_at IS NOT NULL;
CREATE INDEX semel_inbox_dead_dropped ON semel_inbox_dead (dropped_at) WHERE dropped_at IS NOT NULL;
UPDATE semel_inbox_meta SET version = 2;
