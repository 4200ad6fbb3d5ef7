SELECT (SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)),
       i.state, i.effect, i.epoch, i.lease_until, i.expires_at, i.owner, i.recipe, i.fingerprint, i.outcome
FROM (SELECT ?1 AS id) asked LEFT JOIN semel_intent i ON i.id = asked.id
