-- The ledger. Entries are only ever added; a mistake is corrected by another posting.
CREATE TABLE IF NOT EXISTS semel_account (
    id       VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
    currency VARCHAR(12)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- The lowest balance the account may have; NULL for one that may have any.
    `floor`  BIGINT,
    -- Only for accounts with a floor: the sum of their entries, kept under the row's lock.
    running  BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS semel_posting (
    operation BINARY(32) PRIMARY KEY,
    -- Over its lines: the same operation with other lines is another request.
    digest    BINARY(32) NOT NULL,
    token     BINARY(16) NOT NULL,
    posted_at BIGINT     NOT NULL
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS semel_entry (
    operation BINARY(32)   NOT NULL,
    line      INTEGER      NOT NULL,
    account   VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    amount    BIGINT       NOT NULL CHECK (amount <> 0),
    PRIMARY KEY (operation, line),
    KEY semel_entry_account (account, amount),
    FOREIGN KEY (operation) REFERENCES semel_posting (operation),
    FOREIGN KEY (account) REFERENCES semel_account (id)
) ENGINE = InnoDB;
