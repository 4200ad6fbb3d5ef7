-- One row for each customer to be told of something. Nothing here is unique but the row's own number: a message that had its
-- effect twice would be seen, and not swallowed by a constraint.
CREATE TABLE IF NOT EXISTS notifications (
    n        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The event's id, as whoever told it named it.
    event    text        NOT NULL,
    kind     text        NOT NULL,
    payment  text        NOT NULL,
    -- Where it is about a refund.
    refund   text,
    merchant text        NOT NULL,
    amount   bigint      NOT NULL,
    made_at  timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX IF NOT EXISTS notifications_of ON notifications (payment);

-- Messages that cannot be read, for people. The place names a delivery: the same one twice is kept once.
CREATE TABLE IF NOT EXISTS unreadable (
    place   text        PRIMARY KEY,
    event   text,
    error   text        NOT NULL,
    payload bytea       NOT NULL,
    kept_at timestamptz NOT NULL DEFAULT now()
);
