-- Retention: deletes one bounded batch of keys of events that were appended long ago.
DELETE FROM semel_outbox_key WHERE key IN (
    SELECT key FROM semel_outbox_key
    WHERE made_at < clock_timestamp() - $1::bigint * interval '1 millisecond'
    ORDER BY made_at LIMIT $2::bigint FOR UPDATE SKIP LOCKED
)
RETURNING 1
