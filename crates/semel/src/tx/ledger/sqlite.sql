-- The ledger. Entries are only ever added; a mistake is corrected by another posting.
CREATE TABLE IF NOT EXISTS semel_account (
    id       TEXT    PRIMARY KEY NOT NULL,
    currency TEXT    NOT NULL,
    -- The lowest balance the account may have; NULL for one that may have any.
    floor    INTEGER,
    -- Only for accounts with a floor: the sum of their entries.
    running  INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE IF NOT EXISTS semel_posting (
    operation BLOB    PRIMARY KEY NOT NULL,
    -- Over its lines: the same operation with other lines is another request.
    digest    BLOB    NOT NULL,
    token     BLOB    NOT NULL,
    posted_at INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER))
) STRICT;

CREATE TABLE IF NOT EXISTS semel_entry (
    operation BLOB    NOT NULL REFERENCES semel_posting (operation),
    line      INTEGER NOT NULL,
    account   TEXT    NOT NULL REFERENCES semel_account (id),
    amount    INTEGER NOT NULL CHECK (amount <> 0),
    PRIMARY KEY (operation, line)
) STRICT;

CREATE INDEX IF NOT EXISTS semel_entry_account ON semel_entry (account, amount);
