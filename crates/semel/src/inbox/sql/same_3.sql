-- No change for this database. Version 3.
UPDATE semel_inbox_meta SET version = 3;
