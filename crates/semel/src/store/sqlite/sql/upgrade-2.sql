-- From version 1.
-- Which data this is: what a cache remembers about another lineage is not about this file. Made anew by
-- `semel migrate --new-lineage` when an older backup was put in its place.
CREATE TABLE lineage (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    id       BLOB NOT NULL CHECK (length(id) = 16)
) STRICT;
INSERT INTO lineage VALUES (1, randomblob(16));
PRAGMA user_version = 2;
