-- Stores the results of a retry batch, under the epochs of its partitions (column `lane`).
-- $3: published; $4 and $5: failed, and the errors; $6 and $7: keys that stay parked, and whether for good (no
-- automatic retry); $8: their due time when they were read, in microseconds; $9: keys that did not fail; $10: the first
-- backoff in ms.
WITH mine AS MATERIALIZED (
    SELECT c.lane FROM semel_outbox_cursor c
    JOIN unnest($1::smallint[], $2::bigint[]) AS m (lane, epoch) ON c.lane = m.lane AND c.epoch = m.epoch
    ORDER BY c.lane FOR UPDATE OF c
),
ours AS MATERIALIZED (SELECT (SELECT count(*) FROM mine) = cardinality($1::smallint[]) AS yes),
gone AS (DELETE FROM semel_outbox_parked WHERE n = ANY ($3::bigint[]) AND (SELECT yes FROM ours)),
failed AS (
    UPDATE semel_outbox_parked p SET error = f.error
    FROM unnest($4::bigint[], $5::text[]) AS f (n, error) WHERE p.n = f.n AND (SELECT yes FROM ours)
),
later AS (
    UPDATE semel_outbox_parked_key k SET
        tries = k.tries + 1,
        due_at = CASE WHEN NOT f.for_good THEN
            clock_timestamp() + interval '1 millisecond'
                * least($10::bigint * 2 ^ least(k.tries + 1, 20), greatest($10::bigint, 60000)) END
    FROM unnest($6::text[], $7::boolean[], $8::bigint[]) AS f (key, for_good, due)
    WHERE k.key = f.key AND (SELECT yes FROM ours)
        -- Keeps what an operator changed meanwhile by retry or skip.
        AND (extract(epoch FROM k.due_at) * 1000000)::bigint IS NOT DISTINCT FROM f.due
),
ended AS (
    DELETE FROM semel_outbox_parked_key k
    WHERE k.key = ANY ($9::text[]) AND (SELECT yes FROM ours)
        AND NOT EXISTS (SELECT FROM semel_outbox_parked p WHERE p.parked_key = k.key AND p.n <> ALL ($3::bigint[]))
),
going_on AS (
    UPDATE semel_outbox_parked_key k SET tries = 0, due_at = clock_timestamp()
    WHERE k.key = ANY ($9::text[]) AND (SELECT yes FROM ours)
        AND EXISTS (SELECT FROM semel_outbox_parked p WHERE p.parked_key = k.key AND p.n <> ALL ($3::bigint[]))
)
SELECT lane FROM mine WHERE (SELECT yes FROM ours)
