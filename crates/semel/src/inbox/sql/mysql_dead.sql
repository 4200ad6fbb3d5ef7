-- Dead letters: messages that could not be handled, for an operator to decide. Version 2. In MySQL every statement
-- commits by itself, and the version is set last, so that a second run goes on.

-- One row per message and consumer. Times are in ms.
CREATE TABLE IF NOT EXISTS semel_inbox_dead (
    n               bigint       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    -- The mark the message would have; without an identity, a digest of its position and payload.
    id              binary(16)   NOT NULL,
    consumer        varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    source          longtext     CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    -- The encoded identity. NULL: the message has none.
    identity        blob,
    message_id      text         CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    topic           longtext     CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    lineage         longtext     CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    place           longtext     CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    `key`           longtext     CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    -- JSON: pairs of name and value, in order.
    headers         longtext     CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    payload         longblob     NOT NULL,
    content_type    longtext     CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    error           text         CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    attempts        bigint       NOT NULL,
    first_failed_at bigint       NOT NULL,
    dead_at         bigint       NOT NULL,
    -- When to redeliver it; while it is leased, when the lease expires. NULL: not at all.
    retry_at        bigint,
    -- Dropped, and why. Its payload and headers are deleted.
    dropped_at      bigint,
    dropped_why     text         CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    UNIQUE KEY semel_inbox_dead_id (id),
    KEY semel_inbox_dead_retry (consumer, retry_at),
    KEY semel_inbox_dead_dropped (dropped_at)
) ENGINE = InnoDB;
UPDATE semel_inbox_meta SET version = 2;
