-- The intents a client has written down, version 1. Everything below is one transaction.
-- Times are milliseconds since 1970.

CREATE TABLE intent (
    seq         INTEGER PRIMARY KEY,  -- the order they were written down in
    key         TEXT    NOT NULL UNIQUE,
    state       INTEGER NOT NULL,     -- 0 open, 1 held, 2 expired, 3 answered
    created_at  INTEGER NOT NULL,
    changed_at  INTEGER NOT NULL,
    until       INTEGER NOT NULL,     -- sent before this, or not at all
    attempts    INTEGER NOT NULL,
    owner       BLOB,                 -- who is sending it
    lease_until INTEGER NOT NULL,     -- and until when nobody else may
    why         TEXT,                 -- what the last round of attempts ended in
    method      TEXT    NOT NULL,
    uri         TEXT    NOT NULL,
    headers     BLOB    NOT NULL,     -- "name: value" lines
    identity    BLOB    NOT NULL,     -- those of them that tell one intent from another
    body        BLOB    NOT NULL,
    status      INTEGER,              -- of the answer
    answer      BLOB,                 -- its headers, as above
    answer_body BLOB                  -- NULL where it was too large to keep
) STRICT;

-- What is not finished, in its order, among many that are.
CREATE INDEX intent_unfinished ON intent (seq) WHERE state < 3;

PRAGMA application_id = 0x53454D43; -- "SEMC"
PRAGMA user_version = 1;
