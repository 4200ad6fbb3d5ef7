SELECT CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 AS SIGNED),
       i.state, i.effect, i.epoch, i.lease_until, i.expires_at, i.owner, i.recipe, i.fingerprint, i.outcome
FROM (SELECT ?1 AS id) asked LEFT JOIN semel_intent i ON i.id = asked.id
