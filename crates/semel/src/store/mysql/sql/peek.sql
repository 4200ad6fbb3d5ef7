-- What an open transaction is about to commit: read only to say that somebody is at it.
SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED;
SELECT {columns}, {clock} FROM semel_intent WHERE id = {id}
