-- Checkpoint: records how far the relay has come, under the epochs of its partitions (column `lane`), and parks events:
-- copies each, in order, and adds their keys. $3 to $8: the slot's row; $9 to $11: the cursor's; $12: the error, null
-- for an event held behind another; $13: the key each is parked under; $14: for good (no automatic retry); $15: the
-- first backoff in ms; then the events.
--
-- The returned snapshot is taken before the returned LSN is read: every transaction visible in it committed before that
-- LSN.
WITH mine AS MATERIALIZED (
    SELECT c.lane FROM semel_outbox_cursor c
    JOIN unnest($1::smallint[], $2::bigint[]) AS m (lane, epoch) ON c.lane = m.lane AND c.epoch = m.epoch
    ORDER BY c.lane FOR UPDATE OF c
),
ours AS MATERIALIZED (SELECT (SELECT count(*) FROM mine) = cardinality($1::smallint[]) AS yes),
recorded AS (
    INSERT INTO semel_outbox_slot (name, lineage, acked, commit_lsn, place, walk)
    SELECT $3::text, $4::text, $5::text::pg_lsn, $6::text::pg_lsn, $7::bigint, $8::text::pg_snapshot
    FROM ours WHERE yes
    ON CONFLICT (name) DO UPDATE SET
        lineage = excluded.lineage, acked = excluded.acked, commit_lsn = excluded.commit_lsn,
        place = excluded.place, walk = excluded.walk, noted_at = clock_timestamp()
),
moved AS (
    UPDATE semel_outbox_cursor c
    SET low = $9::text::pg_snapshot, high = $10::text::pg_snapshot, after_seq = $11::bigint, until_seq = NULL
    WHERE (SELECT yes FROM ours)
        AND (c.low::text, c.high::text, c.after_seq, c.until_seq)
            IS DISTINCT FROM ($9::text, $10::text, $11::bigint, NULL::bigint)
),
to_park AS MATERIALIZED (
    SELECT o.*, abs(hashtext(coalesce(o.key, o.aggregate_id, o.id)) % 16) AS lane
    FROM unnest($12::text[], $13::text[], $14::boolean[], $16::text[], $17::text[], $18::text[], $19::text[],
                $20::text[], $21::text[], $22::text[], $23::text[], $24::text[], $25::text[], $26::text[],
                $27::bytea[], $28::bytea[])
        WITH ORDINALITY AS o (error, parked_key, for_good, made_at, id, topic, type, key, aggregate_type, aggregate_id,
                              content_type, headers, idempotency_key, trace_parent, intent, payload, at)
    WHERE (SELECT yes FROM ours)
),
keys AS (
    INSERT INTO semel_outbox_parked_key (key, lane, due_at)
    SELECT parked_key, lane,
           CASE WHEN NOT for_good THEN clock_timestamp() + $15::bigint * interval '1 millisecond' END
    -- The first event of a key decides when the key is retried.
    FROM to_park WHERE error IS NOT NULL ORDER BY at
    ON CONFLICT (key) DO NOTHING
),
copies AS (
    INSERT INTO semel_outbox_parked
        (parked_key, error, made_at, id, topic, type, key, aggregate_type, aggregate_id, content_type, headers,
         idempotency_key, trace_parent, intent, payload)
    SELECT parked_key, error, coalesce(made_at::timestamptz, clock_timestamp()), id::uuid, topic, type, key,
           aggregate_type, aggregate_id, content_type, headers::jsonb, idempotency_key, trace_parent, intent, payload
    FROM to_park a WHERE NOT EXISTS (SELECT FROM semel_outbox_parked p WHERE p.id = a.id::uuid AND p.topic = a.topic)
    ORDER BY at
)
SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text FROM ours WHERE yes
