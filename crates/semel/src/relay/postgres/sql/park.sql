-- Acks a chunk like advance.sql, and parks the events that failed: copies each, in order, and adds their keys.
-- $4: their seqs; $5: the error, null for an event held behind another; $6: the key each is parked under; $7: for good
-- (no automatic retry).
WITH mine AS MATERIALIZED (
    SELECT c.lane FROM semel_outbox_cursor c
    JOIN unnest($1::smallint[], $2::bigint[]) AS m (lane, epoch) ON c.lane = m.lane AND c.epoch = m.epoch
    WHERE c.until_seq = $3::bigint
    ORDER BY c.lane FOR UPDATE OF c
),
moved AS (
    UPDATE semel_outbox_cursor c SET after_seq = c.until_seq, until_seq = NULL
    WHERE c.lane IN (SELECT lane FROM mine) AND (SELECT count(*) FROM mine) = cardinality($1::smallint[])
    RETURNING c.lane, c.ctid::text AS tid
),
to_park AS MATERIALIZED (
    SELECT o.*, a.at, a.error, a.for_good,
           a.parked_key, abs(hashtext(coalesce(o.key, o.aggregate_id, o.id::text)) % 16) AS lane
    FROM unnest($4::bigint[], $5::text[], $6::text[], $7::boolean[])
        WITH ORDINALITY AS a (seq, error, parked_key, for_good, at)
    JOIN semel_outbox o ON o.seq = a.seq
    WHERE (SELECT count(*) FROM mine) = cardinality($1::smallint[])
),
keys AS (
    INSERT INTO semel_outbox_parked_key (key, lane, due_at)
    SELECT parked_key, lane,
           CASE WHEN NOT for_good THEN clock_timestamp() + $8::bigint * interval '1 millisecond' END
    -- The first event of a key decides when the key is retried.
    FROM to_park WHERE error IS NOT NULL ORDER BY at
    ON CONFLICT (key) DO NOTHING
),
copies AS (
    INSERT INTO semel_outbox_parked
        (parked_key, error, made_at, id, topic, type, key, aggregate_type, aggregate_id, content_type, headers,
         idempotency_key, trace_parent, intent, payload)
    SELECT parked_key, error, made_at, id, topic, type, key, aggregate_type, aggregate_id, content_type, headers,
           idempotency_key, trace_parent, intent, payload
    FROM to_park ORDER BY at
)
SELECT lane, tid FROM moved
