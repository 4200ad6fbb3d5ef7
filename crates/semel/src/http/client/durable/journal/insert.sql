-- Inserts and claims in one statement: from here on the intent is sent until there is an answer.
INSERT INTO intent (
    key, state, created_at, changed_at, until, attempts, owner, lease_until,
    method, uri, headers, identity, body
)
VALUES (?1, 0, ?2, ?2, ?3, 0, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
