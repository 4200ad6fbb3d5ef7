//! The ledger's statements, each in every dialect.

use crate::tx::driver::Sql;

/// 1 id, 2 currency, 3 floor.
pub(super) const OPEN: Sql = Sql {
    postgres: "INSERT INTO semel_account (id, currency, floor) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING",
    mysql: "INSERT INTO semel_account (id, currency, `floor`) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE id = id",
    sqlite: "INSERT INTO semel_account (id, currency, floor) VALUES (?1, ?2, ?3) ON CONFLICT (id) DO NOTHING",
};

/// 1 and 2 ids; two at a time, because most postings have two lines. A committed account never changes but for its
/// running total, so this reads without a lock: a lock that is upgraded later is how two postings of one account
/// would deadlock. Converted in MySQL: drivers take a column with a binary collation for bytes.
pub(super) const ACCOUNTS: Sql = Sql {
    postgres: "SELECT id, currency, floor FROM semel_account WHERE id IN ($1, $2)",
    mysql: "SELECT CONVERT(id USING utf8mb4), CONVERT(currency USING utf8mb4), `floor` FROM semel_account \
            WHERE id IN (?, ?)",
    sqlite: "SELECT id, currency, floor FROM semel_account WHERE id IN (?1, ?2)",
};

/// The same past MySQL's snapshot, which may be older than the account.
pub(super) const ACCOUNTS_NOW: Sql = Sql {
    mysql: "SELECT CONVERT(id USING utf8mb4), CONVERT(currency USING utf8mb4), `floor` FROM semel_account \
            WHERE id IN (?, ?) FOR UPDATE",
    ..ACCOUNTS
};

/// 1 id. `NO KEY`: foreign-key checks of other entries do not wait for it.
pub(super) const LOCK: Sql = Sql {
    postgres: "SELECT running FROM semel_account WHERE id = $1 FOR NO KEY UPDATE",
    mysql: "SELECT running FROM semel_account WHERE id = ? FOR UPDATE",
    sqlite: "SELECT running FROM semel_account WHERE id = ?1",
};

/// 1 running total, 2 id.
pub(super) const RUN_ON: Sql = Sql {
    postgres: "UPDATE semel_account SET running = $1 WHERE id = $2",
    mysql: "UPDATE semel_account SET running = ? WHERE id = ?",
    sqlite: "UPDATE semel_account SET running = ?1 WHERE id = ?2",
};

/// 1 operation, 2 digest, 3 token. The unique name decides: the token in the row says who posted it.
pub(super) const POST: Sql = Sql {
    postgres: "INSERT INTO semel_posting (operation, digest, token) VALUES ($1, $2, $3) ON CONFLICT (operation) DO NOTHING",
    mysql: "INSERT INTO semel_posting (operation, digest, token, posted_at) \
            VALUES (?, ?, ?, CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)) \
            ON DUPLICATE KEY UPDATE operation = operation",
    sqlite: "INSERT INTO semel_posting (operation, digest, token) VALUES (?1, ?2, ?3) ON CONFLICT (operation) DO NOTHING",
};

/// 1 operation. A locking read in MySQL: its snapshot may be older than what the insert ran into.
pub(super) const POSTED: Sql = Sql {
    postgres: "SELECT digest, token, posted_at FROM semel_posting WHERE operation = $1",
    mysql: "SELECT digest, token, posted_at FROM semel_posting WHERE operation = ? LOCK IN SHARE MODE",
    sqlite: "SELECT digest, token, posted_at FROM semel_posting WHERE operation = ?1",
};

/// 1 operation, 2 line, 3 account, 4 amount.
pub(super) const ENTRY: Sql = Sql {
    postgres: "INSERT INTO semel_entry (operation, line, account, amount) VALUES ($1, $2, $3, $4)",
    mysql: "INSERT INTO semel_entry (operation, line, account, amount) VALUES (?, ?, ?, ?)",
    sqlite: "INSERT INTO semel_entry (operation, line, account, amount) VALUES (?1, ?2, ?3, ?4)",
};

/// The same for two lines: 1 to 4, 5 to 8.
pub(super) const ENTRIES: Sql = Sql {
    postgres: "INSERT INTO semel_entry (operation, line, account, amount) VALUES ($1, $2, $3, $4), ($5, $6, $7, $8)",
    mysql: "INSERT INTO semel_entry (operation, line, account, amount) VALUES (?, ?, ?, ?), (?, ?, ?, ?)",
    sqlite: "INSERT INTO semel_entry (operation, line, account, amount) VALUES (?1, ?2, ?3, ?4), (?5, ?6, ?7, ?8)",
};

/// 1 account. Exact beyond 64 bits: as text, or in two halves where the database sums in 64 bits only.
pub(super) const BALANCE: Sql = Sql {
    postgres: "SELECT count(*), coalesce(sum(amount), 0)::text FROM semel_account LEFT JOIN semel_entry ON account = id WHERE id = $1 GROUP BY id",
    mysql: "SELECT count(*), CAST(coalesce(sum(amount), 0) AS CHAR) FROM semel_account LEFT JOIN semel_entry ON account = id WHERE id = ? GROUP BY id",
    sqlite: "SELECT count(*), coalesce(sum(amount >> 32), 0), coalesce(sum(amount & 4294967295), 0) FROM semel_account LEFT JOIN semel_entry ON account = id WHERE id = ?1 GROUP BY id",
};
