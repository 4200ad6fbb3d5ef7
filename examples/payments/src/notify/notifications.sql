-- One row for each notification. Nothing here is unique but the row's own number: a message that was handled twice
-- would show, and not be swallowed by a constraint.
CREATE TABLE IF NOT EXISTS notifications (
    n        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The event's id, as its publisher named it.
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

-- Dead letters: messages that cannot be read, for people. The place identifies a delivery: a duplicate is kept once.
CREATE TABLE IF NOT EXISTS unreadable (
    place   text        PRIMARY KEY,
    event   text,
    error   text        NOT NULL,
    payload bytea       NOT NULL,
    kept_at timestamptz NOT NULL DEFAULT now()
);
