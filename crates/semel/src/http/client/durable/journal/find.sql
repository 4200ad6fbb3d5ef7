SELECT state, until, lease_until, method, uri, identity, body, status, answer, answer_body
FROM intent
WHERE key = ?1
