-- A dirty read of what an open transaction is about to commit, only to answer "in flight".
SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED;
SELECT {columns}, {clock} FROM semel_intent WHERE id = {id}
