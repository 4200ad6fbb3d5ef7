-- Switches strict order off.
DROP TRIGGER IF EXISTS semel_outbox_in_order ON semel_outbox;
DROP FUNCTION IF EXISTS semel_outbox_in_order();
