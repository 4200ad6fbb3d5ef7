-- Heartbeat: renews this relay's lease. Returns the other relays with a valid lease, and the lineage of the tables.
WITH beat AS (
    INSERT INTO semel_outbox_relay (id, lease_until)
    VALUES ($1::text::uuid, clock_timestamp() + $2::bigint * interval '1 millisecond')
    ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until
),
dead AS (
    DELETE FROM semel_outbox_relay
    WHERE lease_until < clock_timestamp() - interval '1 hour' AND id <> $1::text::uuid
)
SELECT ARRAY(
           SELECT id::text FROM semel_outbox_relay
           WHERE lease_until > clock_timestamp() AND id <> $1::text::uuid ORDER BY id
       ) AS others,
       (SELECT lineage::text FROM semel_outbox_meta) AS lineage
