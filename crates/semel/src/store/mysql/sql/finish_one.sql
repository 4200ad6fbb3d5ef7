-- A single outcome: what the state machine decides in the usual case, in one round trip. If nothing matches, the row is
-- read under a lock; so is an open one with an expires_at, which is the time until which its key protects. SYSDATE is read when the row is locked; NOW() would be earlier.
UPDATE semel_intent
SET state = {state}, expires_at = {expires_at}, changed_at = {clock}, outcome = {outcome}
WHERE id = {id} AND owner = {owner} AND epoch = {epoch} AND state < 2 AND state <> {state} AND expires_at IS NULL
