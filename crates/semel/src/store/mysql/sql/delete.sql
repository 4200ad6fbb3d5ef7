-- Rows this transaction has locked, each found by its key: walking the whole of a small table would wait for
-- rows that are not to be deleted, and DELETE does not heed FORCE INDEX.
DELETE i FROM ({doomed}) d STRAIGHT_JOIN semel_intent i ON i.id = d.id;
COMMIT
