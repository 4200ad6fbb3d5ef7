-- Outcomes of rows this transaction has locked.
UPDATE ({outcomes}) f STRAIGHT_JOIN semel_intent i ON i.id = f.id
SET i.state = f.state, i.effect = f.effect, i.changed_at = f.changed_at, i.expires_at = f.expires_at, i.outcome = f.outcome
