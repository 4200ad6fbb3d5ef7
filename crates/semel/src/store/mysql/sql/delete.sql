-- Rows this transaction has locked. In the form for several tables, which lets the index be named: walking
-- the whole of a small table would wait for rows that are not to be deleted.
DELETE i FROM semel_intent i FORCE INDEX (PRIMARY) WHERE i.id IN ({ids});
COMMIT
