-- A page's worth of places, newest first.
SELECT created_at, id, CAST(COALESCE(LENGTH(outcome), 0) AS SIGNED)
FROM semel_intent FORCE INDEX ({index})
WHERE {place}
  -- Expired is absent.
  AND (state < 2 OR expires_at IS NULL OR expires_at > {now})
  -- The state that holds now: an opaque claim whose lease ran out is uncertain.
  AND IF(state = 0 AND effect = 0 AND lease_until <= {now}, 1, state) IN ({states})
  AND {now} - IF(state = 0 AND lease_until <= {now}, lease_until, changed_at) >= {older_than_ms}
  {filters}
ORDER BY created_at DESC, id DESC
LIMIT {limit}
