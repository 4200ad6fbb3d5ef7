-- Leases of rows this transaction has locked.
UPDATE ({renewed}) r STRAIGHT_JOIN semel_intent i ON i.id = r.id
SET i.lease_until = r.lease_until
