-- Locks the rows of {ids} that no other transaction has locked, and returns which ones it could not lock.
SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED;
START TRANSACTION;
-- A locking read sees the last commit, whatever the isolation level. The index is named, because a locking read locks
-- every row it scans.
SELECT {columns} FROM semel_intent FORCE INDEX (PRIMARY) WHERE id IN ({ids}) ORDER BY id FOR UPDATE SKIP LOCKED;
-- A dirty read: a row that exists and was not locked above is locked by another open transaction.
SELECT id FROM semel_intent WHERE id IN ({ids});
-- The clock after the locks, so that it is not older than the rows.
SELECT {clock}
