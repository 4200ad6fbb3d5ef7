-- From version 1.
-- The identity of this data: cache entries of another lineage are not about this file. Replaced by
-- `semel migrate --new-lineage` after an older backup was restored.
CREATE TABLE lineage (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    id       BLOB NOT NULL CHECK (length(id) = 16)
) STRICT;
INSERT INTO lineage VALUES (1, randomblob(16));
PRAGMA user_version = 2;
