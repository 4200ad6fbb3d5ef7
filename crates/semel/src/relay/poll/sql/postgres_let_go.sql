-- Gives back whatever a relay has, of which it knows no epoch any more.
UPDATE semel_outbox_cursor SET owner = NULL WHERE owner = $1::text::uuid
