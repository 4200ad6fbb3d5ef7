UPDATE semel_intent
SET state = {state}, effect = {effect}, epoch = {epoch}, owner = {owner}, changed_at = {changed_at}, expires_at = {expires_at},
    decision = {decision}, outcome = {outcome}
WHERE id = {id}
