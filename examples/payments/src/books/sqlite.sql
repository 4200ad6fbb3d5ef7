-- The service's own tables; money moves in the ledger's.
CREATE TABLE IF NOT EXISTS payment (
    id       TEXT   PRIMARY KEY NOT NULL,
    merchant TEXT   NOT NULL,
    -- The client's key. Kept for good: the ledger knows it for longer than answers are kept.
    key      TEXT   NOT NULL,
    customer TEXT   NOT NULL,
    amount   INTEGER NOT NULL CHECK (amount > 0),
    refunded INTEGER NOT NULL DEFAULT 0 CHECK (refunded BETWEEN 0 AND amount)
) STRICT;

CREATE UNIQUE INDEX IF NOT EXISTS payment_by_key ON payment (merchant, key);

CREATE TABLE IF NOT EXISTS refund (
    id      TEXT   PRIMARY KEY NOT NULL,
    payment TEXT   NOT NULL REFERENCES payment (id),
    amount  INTEGER NOT NULL CHECK (amount > 0)
) STRICT;

-- Cards that are about to be charged, or were and the booking is still to come.
CREATE TABLE IF NOT EXISTS reserved (
    payment  TEXT    PRIMARY KEY NOT NULL,
    merchant TEXT    NOT NULL,
    key      TEXT    NOT NULL,
    amount   INTEGER NOT NULL CHECK (amount > 0)
) STRICT;
