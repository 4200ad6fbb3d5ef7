-- The ledger. Entries are only ever added; a mistake is corrected by another posting.
CREATE TABLE IF NOT EXISTS semel_account (
    id       text   PRIMARY KEY,
    currency text   NOT NULL,
    -- The lowest balance the account may have; NULL for one that may have any.
    floor    bigint,
    -- Only for accounts with a floor: the sum of their entries, kept under the row's lock.
    running  bigint NOT NULL DEFAULT 0
);

CREATE TABLE IF NOT EXISTS semel_posting (
    operation bytea  PRIMARY KEY,
    -- Over its lines: the same operation with other lines is another request.
    digest    bytea  NOT NULL,
    token     bytea  NOT NULL,
    posted_at bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint
);

CREATE TABLE IF NOT EXISTS semel_entry (
    operation bytea   NOT NULL REFERENCES semel_posting (operation),
    line      integer NOT NULL,
    account   text    NOT NULL REFERENCES semel_account (id),
    amount    bigint  NOT NULL CHECK (amount <> 0),
    PRIMARY KEY (operation, line)
);

CREATE INDEX IF NOT EXISTS semel_entry_account ON semel_entry (account) INCLUDE (amount);
