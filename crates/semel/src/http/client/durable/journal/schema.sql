-- The intents of a client, version 1. Everything below is one transaction.
-- Times are milliseconds since 1970.

CREATE TABLE intent (
    seq         INTEGER PRIMARY KEY,  -- insertion order
    key         TEXT    NOT NULL UNIQUE,
    state       INTEGER NOT NULL,     -- 0 open, 1 held, 2 expired, 3 answered
    created_at  INTEGER NOT NULL,
    changed_at  INTEGER NOT NULL,
    until       INTEGER NOT NULL,     -- not sent after this
    attempts    INTEGER NOT NULL,
    owner       BLOB,                 -- the sender that has claimed it
    lease_until INTEGER NOT NULL,     -- when that claim expires
    why         TEXT,                 -- why the last round of attempts ended
    method      TEXT    NOT NULL,
    uri         TEXT    NOT NULL,
    headers     BLOB    NOT NULL,     -- "name: value" lines
    identity    BLOB    NOT NULL,     -- those that distinguish one intent from another
    body        BLOB    NOT NULL,
    status      INTEGER,              -- of the answer
    answer      BLOB,                 -- its headers, as above
    answer_body BLOB                  -- NULL if it was too large to keep
) STRICT;

-- Finds the few unfinished intents among many answered ones, in order.
CREATE INDEX intent_unfinished ON intent (seq) WHERE state < 3;

PRAGMA application_id = 0x53454D43; -- "SEMC"
PRAGMA user_version = 1;
