-- How far the machine's clock was set back, all in all: added to what it says. One row. A file of an earlier build has no such
-- table, and one that such a build opens keeps it.
CREATE TABLE IF NOT EXISTS clock (set_back_ms INTEGER NOT NULL) STRICT;
INSERT INTO clock (set_back_ms) SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM clock);
