-- What was consumed, version 1.

-- One row: what these tables are.
CREATE TABLE semel_inbox_meta (
    only_row tinyint  NOT NULL PRIMARY KEY CHECK (only_row = 1),
    version  int      NOT NULL,
    lineage  char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
) ENGINE = InnoDB;
INSERT INTO semel_inbox_meta VALUES (1, 1, UUID());

-- One row per transaction that marked messages: who, from where, when begun and when done (ms).
CREATE TABLE semel_inbox_batch (
    batch    bigint       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    began_at bigint       NOT NULL,
    ended_at bigint,
    messages int          NOT NULL,
    consumer varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    source   varchar(400) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    KEY semel_inbox_batch_of (consumer, began_at)
) ENGINE = InnoDB;

-- One row per message and consumer: the sixteen bytes are made of both.
CREATE TABLE semel_inbox (
    id    binary(16) NOT NULL PRIMARY KEY,
    batch bigint     NOT NULL,
    KEY semel_inbox_of (batch)
) ENGINE = InnoDB;

-- What became of a message, where that is kept.
CREATE TABLE semel_inbox_result (
    id      binary(16) NOT NULL PRIMARY KEY,
    outcome longblob   NOT NULL
) ENGINE = InnoDB;
