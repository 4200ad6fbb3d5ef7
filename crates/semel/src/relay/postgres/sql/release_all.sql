-- Releases everything a relay owns when it no longer knows the epochs.
UPDATE semel_outbox_cursor SET owner = NULL WHERE owner = $1::text::uuid
