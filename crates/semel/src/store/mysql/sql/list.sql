-- The cursors of a page (created_at, id), newest first.
SELECT created_at, id, CAST(COALESCE(LENGTH(outcome), 0) AS SIGNED)
FROM semel_intent FORCE INDEX ({index})
WHERE {range}
  -- Expired counts as absent.
  AND (state < 2 OR expires_at IS NULL OR expires_at > {now})
  -- The state that holds now: an opaque claim whose lease has expired, or ends more than a day from now, is uncertain,
  -- and so is one whose key may be forgotten. An open record has the time until which its key protects in expires_at:
  -- see encoding.rs.
  AND CASE
      WHEN state = 0 AND effect = 0 AND NOT (lease_until > {now} AND lease_until <= {now} + 86400000)
          AND (expires_at IS NULL OR expires_at <= {now}) THEN 1
      WHEN state = 1 AND effect = 0 AND expires_at > {now} THEN 4
      ELSE state
  END IN ({states})
  -- A record that changed while the clock was ahead counts as just changed, and is listed all the same.
  AND GREATEST(0, {now} - IF(state = 0 AND NOT (lease_until > {now} AND lease_until <= {now} + 86400000), lease_until, changed_at)) >= {older_than_ms}
  {filters}
ORDER BY created_at DESC, id DESC
LIMIT {limit}
