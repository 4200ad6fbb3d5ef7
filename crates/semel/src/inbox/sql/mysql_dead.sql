-- Dead letters: messages that could not be handled, for people. Version 2. Here every statement commits by itself, and
-- the version comes last: run again, it goes on.

-- One row per message and consumer. Moments are in ms.
CREATE TABLE IF NOT EXISTS semel_inbox_dead (
    n               bigint       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    -- The mark it would have; of a message without an id, what tells its place.
    id              binary(16)   NOT NULL,
    consumer        varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    source          longtext     CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    -- Which message it is, to the byte. NULL: nobody could tell.
    identity        blob,
    message_id      text         CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    topic           longtext     CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    lineage         longtext     CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    place           longtext     CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    `key`           longtext     CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    -- JSON: pairs of name and text, in their order.
    headers         longtext     CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    payload         longblob     NOT NULL,
    content_type    longtext     CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    error           text         CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    attempts        bigint       NOT NULL,
    first_failed_at bigint       NOT NULL,
    dead_at         bigint       NOT NULL,
    -- When it is to be handled again; while somebody does, when others may. NULL: not at all.
    retry_at        bigint,
    -- Given up, and why. Its payload and headers are gone.
    dropped_at      bigint,
    dropped_why     text         CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    UNIQUE KEY semel_inbox_dead_id (id),
    KEY semel_inbox_dead_retry (consumer, retry_at),
    KEY semel_inbox_dead_dropped (dropped_at)
) ENGINE = InnoDB;
UPDATE semel_inbox_meta SET version = 2;
