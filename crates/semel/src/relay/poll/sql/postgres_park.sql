-- As advance, with events that are set aside: a copy of each, in their order, and of each key what becomes of it.
-- $4: their seqs; $5: the error, null for one that waits behind another; $6: what each is parked under; $7: for good.
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
aside AS MATERIALIZED (
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
    -- The first of a key decides when it is tried again.
    FROM aside WHERE error IS NOT NULL ORDER BY at
    ON CONFLICT (key) DO NOTHING
),
copies AS (
    INSERT INTO semel_outbox_parked
        (parked_key, error, made_at, id, topic, type, key, aggregate_type, aggregate_id, content_type, headers,
         idempotency_key, trace_parent, intent, payload)
    SELECT parked_key, error, made_at, id, topic, type, key, aggregate_type, aggregate_id, content_type, headers,
           idempotency_key, trace_parent, intent, payload
    FROM aside ORDER BY at
)
SELECT lane, tid FROM moved
