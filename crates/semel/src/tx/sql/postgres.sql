-- Once inside the application's transaction, version 1. Needs the tables of the store.
-- No schema is named: everything is found by the search_path, like the tables.
--
-- Functions, because each is one round trip with plans the session keeps, and because every statement in a
-- volatile function has a snapshot of its own: what is read after the lock is what the last owner committed.

-- Takes the lock of an intent if it is free, then reads its record.
CREATE FUNCTION semel_tx_look(
    p_lock bigint,
    p_id   bytea,
    OUT locked      boolean,
    OUT writable    boolean,
    OUT now_ms      bigint,
    OUT state       smallint,  -- NULL: there is no record
    OUT effect      smallint,
    OUT epoch       bigint,
    OUT lease_until bigint,
    OUT expires_at  bigint,
    OUT owner       bytea,
    OUT recipe      bigint,
    OUT fingerprint bytea,
    OUT outcome     bytea
)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    locked := pg_try_advisory_xact_lock(p_lock);
    -- All in one statement: each separate expression is set up anew in every transaction.
    SELECT
        current_setting('transaction_read_only') = 'off', floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint,
        i.state, i.effect, i.epoch, i.lease_until, i.expires_at, i.owner, i.recipe, i.fingerprint, i.outcome
    INTO writable, now_ms, state, effect, epoch, lease_until, expires_at, owner, recipe, fingerprint, outcome
    FROM (SELECT 1) asked LEFT JOIN semel_intent i ON i.id = p_id;
END
$$;

-- Writes the record of an intent that was read before: a finished one, or a claim. Returns its epoch; NULL when the
-- record has changed since.
CREATE FUNCTION semel_tx_put(
    p_id           bytea,
    p_seen         bigint,  -- the epoch that was read; NULL: there was no record
    p_carry        bigint,  -- 0: the record had expired, nothing of it is carried over
    p_state        bigint,
    p_effect       bigint,
    p_owner        bytea,
    p_lease_ms     bigint,
    p_retention_ms bigint,  -- NULL: forever
    p_fingerprint  bytea,
    p_recipe       bigint,
    p_operation    text,
    p_scope        text,
    p_key          text,
    p_outcome      bytea
) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now       bigint;
    v_operation integer;
    v_epoch     bigint;
BEGIN
    -- Nearly always there is no record yet, and the operation has its number. One statement then.
    IF p_seen IS NULL THEN
        INSERT INTO semel_intent (
            seq, epoch, lease_until, created_at, changed_at, expires_at, recipe, operation, attempts, state, effect,
            id, owner, fingerprint, scope, key, outcome
        )
        SELECT
            v.fresh, v.fresh, v.now + p_lease_ms, v.now, v.now, CASE WHEN p_state >= 2 THEN v.now + p_retention_ms END,
            p_recipe, v.operation, 1, p_state, p_effect, p_id, p_owner, p_fingerprint, p_scope, p_key, p_outcome
        FROM (
            SELECT
                nextval('semel_epoch') AS fresh,
                floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now,
                (SELECT o.n FROM semel_operation o WHERE o.name = p_operation ORDER BY o.n LIMIT 1) AS operation
            OFFSET 0
        ) v
        WHERE v.operation IS NOT NULL
        ON CONFLICT (id) DO NOTHING
        RETURNING semel_intent.epoch INTO v_epoch;
        IF FOUND THEN
            RETURN v_epoch;
        END IF;
    END IF;
    v_now := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    SELECT o.n INTO v_operation FROM semel_operation o WHERE o.name = p_operation ORDER BY o.n LIMIT 1;
    IF NOT FOUND THEN
        INSERT INTO semel_operation (name) VALUES (p_operation) RETURNING n INTO v_operation;
    END IF;
    v_epoch := nextval('semel_epoch');
    INSERT INTO semel_intent AS i (
        seq, epoch, lease_until, created_at, changed_at, expires_at, recipe, operation, attempts, state, effect,
        id, owner, fingerprint, scope, key, outcome
    )
    VALUES (
        v_epoch, v_epoch, v_now + p_lease_ms, v_now, v_now,
        CASE WHEN p_state >= 2 THEN v_now + p_retention_ms END, p_recipe, v_operation, 1, p_state, p_effect,
        p_id, p_owner, p_fingerprint, p_scope, p_key, p_outcome
    )
    ON CONFLICT (id) DO UPDATE SET
        seq = CASE WHEN p_carry = 0 THEN EXCLUDED.seq ELSE i.seq END,
        epoch = GREATEST(EXCLUDED.epoch, i.epoch + 1),
        lease_until = EXCLUDED.lease_until,
        created_at = CASE WHEN p_carry = 0 THEN EXCLUDED.created_at ELSE i.created_at END,
        changed_at = EXCLUDED.changed_at,
        expires_at = EXCLUDED.expires_at,
        recipe = EXCLUDED.recipe,
        attempts = CASE WHEN p_carry = 0 THEN 1 ELSE i.attempts + 1 END,
        state = EXCLUDED.state,
        effect = EXCLUDED.effect,
        owner = EXCLUDED.owner,
        fingerprint = EXCLUDED.fingerprint,
        decision = CASE WHEN p_carry = 0 THEN NULL ELSE i.decision END,
        outcome = EXCLUDED.outcome
    -- The last owner of a lapsed claim may have written the outcome meanwhile, under the same epoch: that stands.
    WHERE i.epoch = p_seen AND (p_carry = 0 OR i.state NOT IN (2, 3))
    RETURNING i.epoch INTO v_epoch;
    RETURN v_epoch;
END
$$;

-- The phases of operations in flight. Deleted when the operation ends: then its outcome is the answer.
CREATE TABLE semel_phase (
    id       bytea   NOT NULL,  -- semel_intent.id
    position integer NOT NULL,  -- from 0
    plan     text    NOT NULL,  -- the names of all phases as they were when this one was committed
    outcome  bytea   NOT NULL,
    PRIMARY KEY (id, position)
);

-- Before a phase: the claim must still be ours, and its lease is renewed. Returns how many phases are done; NULL when
-- the claim is lost.
CREATE FUNCTION semel_tx_fence(
    p_lock     bigint,
    p_id       bytea,
    p_owner    bytea,
    p_epoch    bigint,
    p_lease_ms bigint,
    OUT locked boolean,
    OUT done   bigint
)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    -- A process that takes over holds the lock until it commits; we do not wait for its row.
    locked := pg_try_advisory_xact_lock(p_lock);
    IF NOT locked THEN
        RETURN;
    END IF;
    UPDATE semel_intent i
    SET lease_until = floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + p_lease_ms
    WHERE i.id = p_id AND i.owner = p_owner AND i.epoch = p_epoch AND i.state = 0;
    IF FOUND THEN
        SELECT count(*) INTO done FROM semel_phase p WHERE p.id = p_id;
    END IF;
END
$$;

-- The last phase is done: its result is the outcome of the whole operation.
CREATE FUNCTION semel_tx_end(p_id bytea, p_epoch bigint, p_retention_ms bigint, p_outcome bytea) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now   bigint := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    v_ended bigint;
BEGIN
    DELETE FROM semel_phase p WHERE p.id = p_id;
    UPDATE semel_intent i
    SET state = 2, changed_at = v_now, expires_at = v_now + p_retention_ms, outcome = p_outcome
    WHERE i.id = p_id AND i.epoch = p_epoch AND i.state = 0
    RETURNING i.epoch INTO v_ended;
    RETURN v_ended;
END
$$;
