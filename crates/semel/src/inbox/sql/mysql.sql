-- The inbox: messages that were handled. Version 1.

-- One row: the version of these tables.
CREATE TABLE semel_inbox_meta (
    only_row tinyint  NOT NULL PRIMARY KEY CHECK (only_row = 1),
    version  int      NOT NULL,
    lineage  char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
) ENGINE = InnoDB;
INSERT INTO semel_inbox_meta VALUES (1, 1, UUID());

-- One row per transaction that marked messages: consumer, source, when it began and ended (ms).
CREATE TABLE semel_inbox_batch (
    batch    bigint       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    began_at bigint       NOT NULL,
    ended_at bigint,
    messages int          NOT NULL,
    consumer varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    source   varchar(400) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    KEY semel_inbox_batch_of (consumer, began_at)
) ENGINE = InnoDB;

-- Marks. One row per message and consumer: the sixteen bytes are a digest of both.
CREATE TABLE semel_inbox (
    id    binary(16) NOT NULL PRIMARY KEY,
    batch bigint     NOT NULL,
    KEY semel_inbox_of (batch)
) ENGINE = InnoDB;

-- Results of handling a message, if they are stored.
CREATE TABLE semel_inbox_result (
    id      binary(16) NOT NULL PRIMARY KEY,
    outcome longblob   NOT NULL
) ENGINE = InnoDB;
