-- Takes the rows of {ids} that nobody else holds, and says which are held.
SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED;
START TRANSACTION;
-- A locking read sees the last commit, whatever the isolation. The index is named, because whatever a
-- locking read walks past it locks.
SELECT {columns} FROM semel_intent FORCE INDEX (PRIMARY) WHERE id IN ({ids}) ORDER BY id FOR UPDATE SKIP LOCKED;
-- A dirty read: what is there and was not locked is held by an open transaction.
SELECT id FROM semel_intent WHERE id IN ({ids});
-- After the locks, so that it is not older than what they show.
SELECT {clock}
