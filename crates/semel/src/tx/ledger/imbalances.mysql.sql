-- Every imbalance of the ledger; no rows when all is well. Names are converted: drivers take a column with a binary
-- collation for bytes.
SELECT * FROM (
    -- Entries of a posting that do not sum up to zero: money appeared or vanished. Also postings without entries.
    SELECT 'posting' AS kind, lower(hex(p.operation)) AS about
    FROM semel_posting p LEFT JOIN semel_entry e ON e.operation = p.operation
    GROUP BY p.operation
    HAVING count(e.line) < 2 OR sum(e.amount) <> 0
    UNION ALL
    SELECT 'currencies', lower(hex(e.operation))
    FROM semel_entry e JOIN semel_account a ON a.id = e.account
    GROUP BY e.operation
    HAVING count(DISTINCT a.currency) > 1
    UNION ALL
    SELECT 'orphan', lower(hex(e.operation))
    FROM semel_entry e
    LEFT JOIN semel_posting p ON p.operation = e.operation
    LEFT JOIN semel_account a ON a.id = e.account
    WHERE p.operation IS NULL OR a.id IS NULL
    UNION ALL
    SELECT 'running', CONVERT(a.id USING utf8mb4)
    FROM semel_account a LEFT JOIN semel_entry e ON e.account = a.id
    WHERE a.`floor` IS NOT NULL
    GROUP BY a.id, a.running
    HAVING coalesce(sum(e.amount), 0) <> a.running
    UNION ALL
    SELECT 'floor', CONVERT(a.id USING utf8mb4) FROM semel_account a WHERE a.running < a.`floor`
    UNION ALL
    SELECT 'currency', CONVERT(a.currency USING utf8mb4)
    FROM semel_entry e JOIN semel_account a ON a.id = e.account
    GROUP BY a.currency
    HAVING sum(e.amount) <> 0
) AS imbalances
LIMIT 100
