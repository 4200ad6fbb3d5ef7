SELECT {columns}, {clock}, i.scope, COALESCE(o.name, '?'), i.`key`
FROM semel_intent i LEFT JOIN semel_operation o ON o.n = i.operation
WHERE i.id IN ({ids})
