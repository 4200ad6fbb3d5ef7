-- Rows this transaction has locked, each found by its key: a scan of a small table would wait for rows that are not to
-- be deleted, and DELETE ignores FORCE INDEX.
DELETE i FROM ({expired}) d STRAIGHT_JOIN semel_intent i ON i.id = d.id;
-- Their phases. A transaction that has such a row locked has the intent's row locked too, so this never waits.
DELETE p FROM ({expired}) d STRAIGHT_JOIN semel_phase p ON p.id = d.id;
COMMIT
