-- A later claim of an intent that may run again.
UPDATE semel_intent
SET state = 0, effect = {effect}, epoch = {epoch}, attempts = {attempts}, lease_until = {lease_until},
    created_at = {created_at}, changed_at = {changed_at}, expires_at = {expires_at}, owner = {owner},
    recipe = {recipe}, fingerprint = {fingerprint}, decision = {decision}, outcome = NULL
WHERE id = {id}
