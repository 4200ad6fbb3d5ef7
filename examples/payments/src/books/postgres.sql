-- The service's own tables; money moves in the ledger's.
CREATE TABLE IF NOT EXISTS payment (
    id       text   PRIMARY KEY,
    merchant text   NOT NULL,
    -- The client's key. Kept for good: the ledger knows it for longer than answers are kept.
    key      text   NOT NULL,
    customer text   NOT NULL,
    amount   bigint NOT NULL CHECK (amount > 0),
    refunded bigint NOT NULL DEFAULT 0 CHECK (refunded BETWEEN 0 AND amount)
);

CREATE UNIQUE INDEX IF NOT EXISTS payment_by_key ON payment (merchant, key);

CREATE TABLE IF NOT EXISTS refund (
    id      text   PRIMARY KEY,
    payment text   NOT NULL REFERENCES payment (id),
    amount  bigint NOT NULL CHECK (amount > 0)
);

-- Cards that are about to be charged, or were and the booking is still to come.
CREATE TABLE IF NOT EXISTS reserved (
    payment  text   PRIMARY KEY,
    merchant text   NOT NULL,
    key      text   NOT NULL,
    amount   bigint NOT NULL CHECK (amount > 0)
);
