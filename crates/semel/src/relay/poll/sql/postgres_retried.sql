-- What became of parked events that were tried again, under the epochs of their lanes.
-- $3: published; $4 and $5: not published, and why; $6 and $7: keys to be tried later, or never by themselves;
-- $8: keys that go on; $9: the first pause in ms.
WITH mine AS MATERIALIZED (
    SELECT c.lane FROM semel_outbox_cursor c
    JOIN unnest($1::smallint[], $2::bigint[]) AS m (lane, epoch) ON c.lane = m.lane AND c.epoch = m.epoch
    ORDER BY c.lane FOR UPDATE OF c
),
ours AS MATERIALIZED (SELECT (SELECT count(*) FROM mine) = cardinality($1::smallint[]) AS yes),
gone AS (DELETE FROM semel_outbox_parked WHERE n = ANY ($3::bigint[]) AND (SELECT yes FROM ours)),
told AS (
    UPDATE semel_outbox_parked p SET error = f.error
    FROM unnest($4::bigint[], $5::text[]) AS f (n, error) WHERE p.n = f.n AND (SELECT yes FROM ours)
),
later AS (
    UPDATE semel_outbox_parked_key k SET
        tries = k.tries + 1,
        due_at = CASE WHEN NOT f.for_good THEN
            clock_timestamp() + interval '1 millisecond'
                * least($9::bigint * 2 ^ least(k.tries + 1, 20), greatest($9::bigint, 60000)) END
    FROM unnest($6::text[], $7::boolean[]) AS f (key, for_good) WHERE k.key = f.key AND (SELECT yes FROM ours)
),
ended AS (
    DELETE FROM semel_outbox_parked_key k
    WHERE k.key = ANY ($8::text[]) AND (SELECT yes FROM ours)
        AND NOT EXISTS (SELECT FROM semel_outbox_parked p WHERE p.parked_key = k.key AND p.n <> ALL ($3::bigint[]))
),
going_on AS (
    UPDATE semel_outbox_parked_key k SET tries = 0, due_at = clock_timestamp()
    WHERE k.key = ANY ($8::text[]) AND (SELECT yes FROM ours)
        AND EXISTS (SELECT FROM semel_outbox_parked p WHERE p.parked_key = k.key AND p.n <> ALL ($3::bigint[]))
)
SELECT lane FROM mine WHERE (SELECT yes FROM ours)
