-- A decision about the record as it was read: if it has changed since, nothing happens. 1 recorded, 0 changed,
-- -1 another transaction has the row locked.
--   $1 id   $2 epoch   $3 state   $4 lease_until: as they were read
--   $5 new state   $6 owner   $7 changed_at   $8 expires_at   $9 decision   $10 outcome   $11 effect
WITH locked AS MATERIALIZED (
    SELECT ctid AS at, epoch = $2::bigint AND state = $3::smallint AND lease_until = $4::bigint AS same
    FROM semel_intent
    WHERE id = $1::bytea
    FOR NO KEY UPDATE SKIP LOCKED
),
done AS (
    UPDATE semel_intent
    SET
        state = $5::smallint,
        epoch = greatest(nextval('semel_epoch'), semel_intent.epoch + 1),
        owner = $6::bytea,
        changed_at = $7::bigint,
        expires_at = $8::bigint,
        decision = $9::text,
        outcome = $10::bytea,
        effect = $11::smallint
    FROM locked
    WHERE semel_intent.ctid = locked.at AND locked.same
    RETURNING 1
)
SELECT
    CASE
        WHEN EXISTS (SELECT FROM done) THEN 1
        WHEN EXISTS (SELECT FROM locked) THEN 0
        WHEN EXISTS (SELECT FROM semel_intent WHERE id = $1::bytea) THEN -1
        ELSE 0
    END AS answer
