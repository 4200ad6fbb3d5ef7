-- An outcome on its own: what the state machine says of the usual case, in one trip. Whatever does not
-- match is looked at under a lock. SYSDATE is read when the row is locked, NOW() would be from before.
UPDATE semel_intent
SET state = {state}, expires_at = {expires_at}, changed_at = {clock}, outcome = {outcome}
WHERE id = {id} AND owner = {owner} AND epoch = {epoch} AND state < 2 AND state <> {state}
