SELECT {columns}, {clock}, i.scope, o.name, i.`key`
FROM semel_intent i JOIN semel_operation o ON o.n = i.operation
WHERE i.id IN ({ids})
