-- The slot as the server reports it, and what the last checkpoint recorded about it.
SELECT s.slot_name IS NOT NULL AS there, s.plugin::text, s.database = current_database() AS here, s.active_pid,
       coalesce(s.wal_status, '') AS wal_status, s.restart_lsn::text, s.confirmed_flush_lsn::text,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), s.restart_lsn)::bigint AS held_bytes,
       n.lineage, n.acked::text, n.commit_lsn::text, n.place, n.walk::text,
       pg_current_snapshot()::text AS now,
       (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout') AS sender_timeout_ms,
       EXISTS (SELECT FROM semel_outbox_parked_key) AS parked,
       pg_current_wal_insert_lsn()::text AS written
FROM (VALUES ($1::text)) AS asked (name)
LEFT JOIN pg_replication_slots s ON s.slot_name = asked.name
LEFT JOIN semel_outbox_slot n ON n.name = asked.name
