UPDATE semel_intent
SET state = {state}, epoch = {epoch}, owner = {owner}, changed_at = {changed_at}, expires_at = {expires_at},
    decision = {decision}, outcome = {outcome}
WHERE id = {id}
