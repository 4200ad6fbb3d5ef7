-- Claims, any number of them in one packet. {ids}: sorted; {count} of them; {asked}: a row for each id,
-- numbered; {clock}: the server's clock in ms.
--
-- Dirty reads on purpose, only to find out which ids are taken: an id that another open transaction has inserted counts
-- as taken, and is not waited for. No answer is based on a dirty read.
SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED;
START TRANSACTION;
-- Takes epochs only where a row will be inserted: a replay writes nothing. EXECUTE, because INSERT … SELECT would lock
-- the counter's table (innodb_autoinc_lock_mode = 1, MariaDB's default) and make claims wait. SELECT … INTO for the
-- count, because a query inside SET would be a locking read.
SELECT IF(COUNT(*) < {count}, 'INSERT INTO semel_fence (n) VALUES (NULL)', 'DO 0') INTO @semel_take
FROM semel_intent WHERE id IN ({ids});
PREPARE semel_take FROM @semel_take;
EXECUTE semel_take;
SET @semel_epoch = IF(@semel_take = 'DO 0', NULL, LAST_INSERT_ID() * 1024);
-- Two claims that race for one id meet at the primary key. The loser changes nothing. It does so by an update, not by
-- INSERT IGNORE, whose shared lock makes the waiters deadlock when the winner rolls back.
INSERT INTO semel_intent (
    id, state, effect, epoch, attempts, lease_until, created_at, changed_at, expires_at,
    owner, recipe, fingerprint, operation, scope, `key`
)
SELECT
    a.id, 0, IF(a.safe_for_ms IS NULL, a.effect, 0), @semel_epoch + a.k, 1, a.now + a.lease_ms, a.now, a.now,
    a.now + a.safe_for_ms,
    a.owner, a.recipe, a.fingerprint, a.operation, a.scope, a.`key`
FROM ({asked}) a
WHERE @semel_epoch IS NOT NULL AND NOT EXISTS (SELECT 1 FROM semel_intent i WHERE i.id = a.id)
ON DUPLICATE KEY UPDATE id = semel_intent.id;
DELETE FROM semel_fence WHERE n = @semel_epoch DIV 1024;
COMMIT;
-- Now the committed rows, each with the time at which it was read.
SELECT {columns}, {clock}, CAST(@semel_epoch AS SIGNED) FROM semel_intent WHERE id IN ({ids})
