-- Events to be published, version 1.

-- One row: the version and the lineage of these tables.
CREATE TABLE semel_outbox_meta (
    only_row tinyint  NOT NULL PRIMARY KEY CHECK (only_row = 1),
    version  int      NOT NULL,
    lineage  char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
) ENGINE = InnoDB;
INSERT INTO semel_outbox_meta VALUES (1, 1, UUID());

-- The last number assigned in each partition. An append locks the row until the commit, so numbers become visible in
-- their order and a reader may rely on them: a lower number that is missing never appears later. The price: one
-- transaction at a time appends to a partition.
CREATE TABLE semel_outbox_part (
    part smallint NOT NULL PRIMARY KEY,
    n    bigint   NOT NULL
) ENGINE = InnoDB;
INSERT INTO semel_outbox_part VALUES
    (0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0),
    (8, 0), (9, 0), (10, 0), (11, 0), (12, 0), (13, 0), (14, 0), (15, 0);

-- From any language: INSERT INTO semel_outbox (topic, type, `key`, payload) VALUES (…). The rest has defaults.
CREATE TABLE semel_outbox (
    part            smallint      NOT NULL DEFAULT 0, -- set by the trigger, like n
    n               bigint        NOT NULL DEFAULT 0,
    made_at         timestamp(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    id              char(36)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    topic           varchar(200)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    type            varchar(200)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    `key`           varchar(1000) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    aggregate_type  varchar(200)  CHARACTER SET ascii COLLATE ascii_bin,
    aggregate_id    varchar(1000) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    content_type    varchar(1000) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT 'application/json',
    headers         longtext      CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    idempotency_key varchar(255)  CHARACTER SET ascii COLLATE ascii_bin,
    trace_parent    varchar(55)   CHARACTER SET ascii COLLATE ascii_bin,
    intent          binary(32),
    payload         longblob      NOT NULL,
    PRIMARY KEY (part, n),
    UNIQUE KEY semel_outbox_once (idempotency_key)
) ENGINE = InnoDB;

CREATE TRIGGER semel_outbox_number BEFORE INSERT ON semel_outbox FOR EACH ROW
BEGIN
    IF NEW.id = '' THEN
        SET NEW.id = UUID();
    END IF;
    SET NEW.part = CRC32(COALESCE(NEW.`key`, NEW.aggregate_id, NEW.id)) % 16;
    UPDATE semel_outbox_part SET n = n + 1 WHERE part = NEW.part;
    SET NEW.n = (SELECT p.n FROM semel_outbox_part p WHERE p.part = NEW.part);
END;

-- The relays that poll, each with a lease (ms) that it renews every few seconds. When a lease expires, others take over
-- its partitions.
CREATE TABLE semel_outbox_relay (
    id          char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    lease_until bigint   NOT NULL
) ENGINE = InnoDB;

-- The polling cursor of each partition: everything up to after_n is published, and the events after after_n up to
-- until_n are in flight. A relay changes a row only under its own epoch (fencing).
CREATE TABLE semel_outbox_cursor (
    part    smallint NOT NULL PRIMARY KEY,
    epoch   bigint   NOT NULL DEFAULT 0,
    owner   char(36) CHARACTER SET ascii COLLATE ascii_bin,
    lineage char(36) CHARACTER SET ascii COLLATE ascii_bin,
    after_n bigint   NOT NULL DEFAULT 0,
    until_n bigint
) ENGINE = InnoDB;
INSERT INTO semel_outbox_cursor (part) SELECT part FROM semel_outbox_part;

-- Parked keys: one of their events could not be published. Stored by SHA-256, because a whole key is too long for an
-- index. due_at: time of the next retry, in ms; null: no automatic retry.
CREATE TABLE semel_outbox_parked_key (
    hash   binary(32) NOT NULL PRIMARY KEY,
    part   smallint   NOT NULL,
    tries  int        NOT NULL DEFAULT 0,
    due_at bigint,
    KEY semel_outbox_parked_by_due (due_at)
) ENGINE = InnoDB;

-- Parked and held events, complete, in publishing order (n). The first event of a key has the error.
CREATE TABLE semel_outbox_parked (
    n               bigint        NOT NULL AUTO_INCREMENT PRIMARY KEY,
    hash            binary(32)    NOT NULL,
    parked_key      varchar(1000) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    error           text          CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    parked_at       timestamp(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    made_at         timestamp(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    id              char(36)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    topic           varchar(200)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    type            varchar(200)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    `key`           varchar(1000) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    aggregate_type  varchar(200)  CHARACTER SET ascii COLLATE ascii_bin,
    aggregate_id    varchar(1000) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    content_type    varchar(1000) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    headers         longtext      CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    idempotency_key varchar(255)  CHARACTER SET ascii COLLATE ascii_bin,
    trace_parent    varchar(55)   CHARACTER SET ascii COLLATE ascii_bin,
    intent          binary(32),
    payload         longblob      NOT NULL,
    KEY semel_outbox_parked_by_key (hash, n),
    KEY semel_outbox_parked_by_id (id)
) ENGINE = InnoDB;
