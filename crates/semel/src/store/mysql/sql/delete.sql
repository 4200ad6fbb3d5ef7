-- Rows this transaction has locked, each found by its key: walking the whole of a small table would wait for
-- rows that are not to be deleted, and DELETE does not heed FORCE INDEX.
DELETE i FROM ({doomed}) d STRAIGHT_JOIN semel_intent i ON i.id = d.id;
-- What their phases left behind. Whoever holds such a row holds the intent's, so nobody is waited for.
DELETE p FROM ({doomed}) d STRAIGHT_JOIN semel_phase p ON p.id = d.id;
COMMIT
