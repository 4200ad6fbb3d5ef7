-- How far the machine's clock was set back in total; it is added to the clock. One row. A file of an earlier build does
-- not have this table; such a build leaves it in place.
CREATE TABLE IF NOT EXISTS clock (set_back_ms INTEGER NOT NULL) STRICT;
INSERT INTO clock (set_back_ms) SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM clock);
