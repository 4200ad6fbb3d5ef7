//! The SQL statements of the journal.

use crate::database::{ManySql, MysqlMany};
use crate::tx::driver::Sql;

macro_rules! now {
    (postgres) => {
        "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    };
    (mysql) => {
        "CAST(FLOOR(UNIX_TIMESTAMP(SYSDATE(3)) * 1000) AS SIGNED)"
    };
    (sqlite) => {
        "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
    };
}

/// The columns that decide about a saga, as `row::saga_row` reads them.
macro_rules! row_columns {
    () => {
        "status, reason, undo_cause, epoch, worker, due_at, deadline, signals, cancelled, expires_at"
    };
}

/// The other columns of a saga, as `row::record` reads them. MySQL returns text with a binary collation as bytes unless
/// it is converted.
macro_rules! record_columns {
    (mysql) => {
        "CONVERT(name USING utf8mb4), version, CONVERT(scope USING utf8mb4), CONVERT(operation USING utf8mb4), \
         CONVERT(`key` USING utf8mb4), recipe, digest, input, outcome, created_at"
    };
    ($other:ident) => {
        "name, version, scope, operation, key, recipe, digest, input, outcome, created_at"
    };
}

macro_rules! record {
    ($dialect:ident, $then:literal) => {
        concat!(
            "SELECT ",
            now!($dialect),
            ", n, ",
            row_columns!(),
            ", ",
            record_columns!($dialect),
            " FROM semel_saga ",
            $then
        )
    };
}

/// The same text in all dialects but for how parameters are written.
macro_rules! sql {
    ($postgres:expr, $other:expr) => {
        Sql { postgres: $postgres, mysql: $other, sqlite: $other }
    };
}

/// Around the work of an atomic step: releasing it fails if the transaction is not the same any more.
/// Not what a step would write: on SQLite it would get the prepared statement, without being asked whether it may.
pub(super) const SAVEPOINT: Sql = Sql::same("SAVEPOINT semel_step /* around the work of a step */");
pub(super) const RELEASE: Sql = Sql::same("RELEASE SAVEPOINT semel_step /* around the work of a step */");

pub(super) const VERSION: Sql = Sql::same("SELECT version FROM semel_saga_meta");

pub(super) const NOW: Sql = Sql {
    postgres: concat!("SELECT ", now!(postgres)),
    mysql: concat!("SELECT ", now!(mysql)),
    sqlite: concat!("SELECT ", now!(sqlite)),
};

/// Which database of which server, and which table in it.
#[cfg(feature = "sqlx-postgres")]
pub(super) const PLACE_POSTGRES: Sql = Sql::same(
    "SELECT current_database()::text, floor(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, \
     to_regclass('semel_saga')::oid::bigint",
);

pub(super) const JOIN: Sql = Sql {
    postgres: concat!(
        "INSERT INTO semel_saga_worker (lease_until) VALUES (",
        now!(postgres),
        " + $1) RETURNING id"
    ),
    // Two statements in one packet.
    mysql: concat!(
        "INSERT INTO semel_saga_worker (lease_until) VALUES (",
        now!(mysql),
        " + ?1); SELECT CAST(LAST_INSERT_ID() AS SIGNED)"
    ),
    sqlite: concat!(
        "INSERT INTO semel_saga_worker (lease_until) VALUES (",
        now!(sqlite),
        " + ?1) RETURNING id"
    ),
};

/// A worker, locked.
pub(super) const WORKER: Sql = Sql {
    postgres: concat!(
        "SELECT ",
        now!(postgres),
        ", lease_until, ended FROM semel_saga_worker WHERE id = $1 FOR UPDATE"
    ),
    mysql: concat!(
        "SELECT ",
        now!(mysql),
        ", lease_until, ended FROM semel_saga_worker WHERE id = ?1 FOR UPDATE"
    ),
    sqlite: concat!("SELECT ", now!(sqlite), ", lease_until, ended FROM semel_saga_worker WHERE id = ?1"),
};

/// The same, unless another transaction has it locked.
pub(super) const WORKER_UNLESS_LOCKED: Sql = Sql {
    postgres: concat!(
        "SELECT ",
        now!(postgres),
        ", lease_until, ended FROM semel_saga_worker WHERE id = $1 FOR UPDATE SKIP LOCKED"
    ),
    mysql: concat!(
        "SELECT ",
        now!(mysql),
        ", lease_until, ended FROM semel_saga_worker WHERE id = ?1 FOR UPDATE SKIP LOCKED"
    ),
    sqlite: WORKER.sqlite,
};

/// For the rest of the transaction on PostgreSQL.
pub(super) const WAIT_BRIEFLY: Sql =
    Sql { postgres: "SET LOCAL lock_timeout = '50ms'", mysql: "", sqlite: "" };

pub(super) const RENEW: Sql = sql!(
    "UPDATE semel_saga_worker SET lease_until = $2 WHERE id = $1",
    "UPDATE semel_saga_worker SET lease_until = ?2 WHERE id = ?1"
);

pub(super) const LEAVE: Sql = sql!(
    "UPDATE semel_saga_worker SET ended = 1 WHERE id = $1",
    "UPDATE semel_saga_worker SET ended = 1 WHERE id = ?1"
);

/// Workers whose lease is over.
pub(super) const LAPSED: Sql = Sql {
    postgres: concat!(
        "SELECT id FROM semel_saga_worker WHERE ended = 0 AND lease_until <= ",
        now!(postgres),
        " ORDER BY id LIMIT 1000"
    ),
    mysql: concat!(
        "SELECT id FROM semel_saga_worker WHERE ended = 0 AND lease_until <= ",
        now!(mysql),
        " ORDER BY id LIMIT 1000"
    ),
    sqlite: concat!(
        "SELECT id FROM semel_saga_worker WHERE ended = 0 AND lease_until <= ",
        now!(sqlite),
        " ORDER BY id LIMIT 1000"
    ),
};

/// Ended workers that have no saga any more. Numbers are never used again, so nothing refers to them.
pub(super) const FORGET_WORKERS: Sql = Sql {
    postgres: concat!(
        "DELETE FROM semel_saga_worker w WHERE ended = 1 AND lease_until < ",
        now!(postgres),
        " - 3600000 AND NOT EXISTS (SELECT 1 FROM semel_saga s WHERE s.worker = w.id)"
    ),
    mysql: concat!(
        "DELETE FROM semel_saga_worker WHERE ended = 1 AND lease_until < ",
        now!(mysql),
        " - 3600000 AND NOT EXISTS (SELECT 1 FROM semel_saga s WHERE s.worker = semel_saga_worker.id)"
    ),
    sqlite: concat!(
        "DELETE FROM semel_saga_worker WHERE ended = 1 AND lease_until < ",
        now!(sqlite),
        " - 3600000 AND NOT EXISTS (SELECT 1 FROM semel_saga s WHERE s.worker = semel_saga_worker.id)"
    ),
};

/// Starts a saga, unless its intent has one.
pub(super) const START: Sql = Sql {
    postgres: concat!(
        "INSERT INTO semel_saga (id, ",
        row_columns!(),
        ", name, version, scope, operation, key, recipe, digest, input, created_at) VALUES ($1, $2, $3, $4, $5, $6, \
         $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20) ON CONFLICT (id) DO NOTHING RETURNING n"
    ),
    mysql: concat!(
        "INSERT INTO semel_saga (id, ",
        row_columns!(),
        ", name, version, scope, operation, `key`, recipe, digest, input, created_at) VALUES (?1, ?2, ?3, ?4, ?5, \
         ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)"
    ),
    sqlite: concat!(
        "INSERT INTO semel_saga (id, ",
        row_columns!(),
        ", name, version, scope, operation, key, recipe, digest, input, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, \
         ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20) ON CONFLICT (id) DO NOTHING RETURNING n"
    ),
};

/// The number of the saga that this transaction inserted.
pub(super) const STARTED_MYSQL: Sql =
    Sql { postgres: "", mysql: "SELECT CAST(LAST_INSERT_ID() AS SIGNED)", sqlite: "" };

pub(super) const FIND: Sql = Sql {
    postgres: record!(postgres, "WHERE id = $1"),
    mysql: record!(mysql, "WHERE id = ?1"),
    sqlite: record!(sqlite, "WHERE id = ?1"),
};

pub(super) const LOOK: Sql = Sql {
    postgres: record!(postgres, "WHERE n = $1"),
    mysql: record!(mysql, "WHERE n = ?1"),
    sqlite: record!(sqlite, "WHERE n = ?1"),
};

/// A saga, locked against changes: what is read after it belongs to it.
pub(super) const LOAD: Sql = Sql {
    postgres: record!(postgres, "WHERE n = $1 FOR SHARE"),
    mysql: record!(mysql, "WHERE n = ?1 LOCK IN SHARE MODE"),
    sqlite: record!(sqlite, "WHERE n = ?1"),
};

/// The row of a saga, locked.
pub(super) const ROW: Sql = Sql {
    postgres: concat!(
        "SELECT ",
        now!(postgres),
        ", n, ",
        row_columns!(),
        " FROM semel_saga WHERE n = $1 FOR UPDATE"
    ),
    mysql: concat!(
        "SELECT ",
        now!(mysql),
        ", n, ",
        row_columns!(),
        " FROM semel_saga WHERE n = ?1 FOR UPDATE"
    ),
    sqlite: concat!("SELECT ", now!(sqlite), ", n, ", row_columns!(), " FROM semel_saga WHERE n = ?1"),
};

/// The same, unless another transaction has it locked.
pub(super) const ROW_UNLESS_LOCKED: Sql = Sql {
    postgres: concat!(
        "SELECT ",
        now!(postgres),
        ", n, ",
        row_columns!(),
        " FROM semel_saga WHERE n = $1 FOR UPDATE SKIP LOCKED"
    ),
    mysql: concat!(
        "SELECT ",
        now!(mysql),
        ", n, ",
        row_columns!(),
        " FROM semel_saga WHERE n = ?1 FOR UPDATE SKIP LOCKED"
    ),
    sqlite: ROW.sqlite,
};

pub(super) const PUT: Sql = sql!(
    "UPDATE semel_saga SET status = $2, reason = $3, undo_cause = $4, epoch = $5, worker = $6, due_at = $7, deadline = $8, \
     signals = $9, cancelled = $10, expires_at = $11, outcome = coalesce($12, outcome) WHERE n = $1",
    "UPDATE semel_saga SET status = ?2, reason = ?3, undo_cause = ?4, epoch = ?5, worker = ?6, due_at = ?7, deadline = ?8, \
     signals = ?9, cancelled = ?10, expires_at = ?11, outcome = coalesce(?12, outcome) WHERE n = ?1"
);

pub(super) const OWNED: Sql = Sql {
    postgres: concat!(
        "SELECT ",
        now!(postgres),
        ", n, ",
        row_columns!(),
        " FROM semel_saga WHERE worker = $1"
    ),
    mysql: concat!("SELECT ", now!(mysql), ", n, ", row_columns!(), " FROM semel_saga WHERE worker = ?1"),
    sqlite: concat!("SELECT ", now!(sqlite), ", n, ", row_columns!(), " FROM semel_saga WHERE worker = ?1"),
};

/// Sagas of a definition that are due and have no worker.
pub(super) const DUE: Sql = Sql {
    postgres: concat!(
        "SELECT n, worker FROM semel_saga WHERE worker IS NULL AND name = $1 AND version <= $2 AND due_at <= ",
        now!(postgres),
        " ORDER BY due_at LIMIT $3"
    ),
    mysql: concat!(
        "SELECT n, worker FROM semel_saga WHERE worker IS NULL AND name = ?1 AND version <= ?2 AND due_at <= ",
        now!(mysql),
        " ORDER BY due_at LIMIT ?3"
    ),
    sqlite: concat!(
        "SELECT n, worker FROM semel_saga WHERE worker IS NULL AND name = ?1 AND version <= ?2 AND due_at <= ",
        now!(sqlite),
        " ORDER BY due_at LIMIT ?3"
    ),
};

/// Sagas of a definition whose worker has ended.
pub(super) const ORPHANED: Sql = sql!(
    "SELECT s.n, s.worker FROM semel_saga_worker w JOIN semel_saga s ON s.worker = w.id \
     WHERE w.ended = 1 AND s.name = $1 AND s.version <= $2 LIMIT $3",
    "SELECT s.n, s.worker FROM semel_saga_worker w JOIN semel_saga s ON s.worker = w.id \
     WHERE w.ended = 1 AND s.name = ?1 AND s.version <= ?2 LIMIT ?3"
);

/// As `row::entry` reads them.
pub(super) const ENTRIES: Sql = Sql {
    postgres: "SELECT seq, kind, step, nth, op, attempt, epoch, at, safe_until, input, body FROM semel_saga_entry \
               WHERE saga = $1 AND seq >= $2 ORDER BY seq",
    mysql: "SELECT seq, kind, CONVERT(step USING utf8mb4), nth, op, attempt, epoch, at, safe_until, input, body \
            FROM semel_saga_entry WHERE saga = ?1 AND seq >= ?2 ORDER BY seq",
    sqlite: "SELECT seq, kind, step, nth, op, attempt, epoch, at, safe_until, input, body FROM semel_saga_entry \
             WHERE saga = ?1 AND seq >= ?2 ORDER BY seq",
};

pub(super) const ADD_ENTRY: Sql = sql!(
    "INSERT INTO semel_saga_entry (saga, seq, kind, step, nth, op, attempt, epoch, at, safe_until, input, body) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
    "INSERT INTO semel_saga_entry (saga, seq, kind, step, nth, op, attempt, epoch, at, safe_until, input, body) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)"
);

/// When a step's operation was done, and with what result.
pub(super) const DONE: Sql = sql!(
    "SELECT at, body FROM semel_saga_entry WHERE saga = $1 AND step = $2 AND nth = $3 AND op = $4 AND kind = 1",
    "SELECT at, body FROM semel_saga_entry WHERE saga = ?1 AND step = ?2 AND nth = ?3 AND op = ?4 AND kind = 1"
);

pub(super) const SIGNALS: Sql = Sql {
    postgres: "SELECT id, name, body FROM semel_saga_signal WHERE saga = $1 ORDER BY seq",
    mysql: "SELECT CONVERT(id USING utf8mb4), CONVERT(name USING utf8mb4), body FROM semel_saga_signal \
            WHERE saga = ?1 ORDER BY seq",
    sqlite: "SELECT id, name, body FROM semel_saga_signal WHERE saga = ?1 ORDER BY seq",
};

/// How many signals a saga has, and whether one of them has this id.
pub(super) const HAS_SIGNAL: Sql = Sql {
    postgres: "SELECT count(*), count(*) FILTER (WHERE id = $2) FROM semel_saga_signal WHERE saga = $1",
    mysql: "SELECT COUNT(*), COUNT(IF(id = ?2, 1, NULL)) FROM semel_saga_signal WHERE saga = ?1",
    sqlite: "SELECT count(*), count(*) FILTER (WHERE id = ?2) FROM semel_saga_signal WHERE saga = ?1",
};

pub(super) const ADD_SIGNAL: Sql = sql!(
    "INSERT INTO semel_saga_signal (saga, id, seq, name, body) VALUES ($1, $2, $3, $4, $5)",
    "INSERT INTO semel_saga_signal (saga, id, seq, name, body) VALUES (?1, ?2, ?3, ?4, ?5)"
);

/// A page, newest first: below a number, of a definition or of all, with a status whose bit is set.
pub(super) const LIST: Sql = Sql {
    postgres: record!(
        postgres,
        "WHERE n < $1 AND ($2::text IS NULL OR name = $2) AND ($3 >> status) & 1 = 1 ORDER BY n DESC LIMIT $4"
    ),
    mysql: record!(
        mysql,
        "WHERE n < ?1 AND (?2 IS NULL OR name = ?2) AND (?3 >> status) & 1 = 1 ORDER BY n DESC LIMIT ?4"
    ),
    sqlite: record!(
        sqlite,
        "WHERE n < ?1 AND (?2 IS NULL OR name = ?2) AND (?3 >> status) & 1 = 1 ORDER BY n DESC LIMIT ?4"
    ),
};

/// Ended sagas whose retention is over. Nothing changes an ended saga, so nothing has to be locked.
pub(super) const EXPIRED: Sql = Sql {
    postgres: concat!(
        "SELECT n FROM semel_saga WHERE expires_at <= ",
        now!(postgres),
        " ORDER BY expires_at LIMIT $1"
    ),
    mysql: concat!(
        "SELECT n FROM semel_saga WHERE expires_at <= ",
        now!(mysql),
        " ORDER BY expires_at LIMIT ?1"
    ),
    sqlite: concat!(
        "SELECT n FROM semel_saga WHERE expires_at <= ",
        now!(sqlite),
        " ORDER BY expires_at LIMIT ?1"
    ),
};

pub(super) const DELETE_ENTRIES: Sql =
    sql!("DELETE FROM semel_saga_entry WHERE saga = $1", "DELETE FROM semel_saga_entry WHERE saga = ?1");
pub(super) const DELETE_SIGNALS: Sql =
    sql!("DELETE FROM semel_saga_signal WHERE saga = $1", "DELETE FROM semel_saga_signal WHERE saga = ?1");
pub(super) const DELETE_SAGA: Sql =
    sql!("DELETE FROM semel_saga WHERE n = $1", "DELETE FROM semel_saga WHERE n = ?1");

/// The rows of several sagas, locked in the order of their numbers. One that another transaction has locked is left out.
pub(super) const ROWS: ManySql = ManySql {
    postgres: concat!(
        "SELECT ",
        now!(postgres),
        ", n, ",
        row_columns!(),
        " FROM semel_saga WHERE n = ANY($1) ORDER BY n FOR UPDATE SKIP LOCKED"
    ),
    mysql: MysqlMany {
        before: concat!(
            "SELECT ",
            now!(mysql),
            ", n, ",
            row_columns!(),
            " FROM semel_saga FORCE INDEX (PRIMARY) WHERE n IN ("
        ),
        row: "?1",
        between: ", ",
        after: ") ORDER BY n FOR UPDATE SKIP LOCKED",
    },
    sqlite: ROW.sqlite,
};

/// Adds entries. On MySQL it fails if one of them is there: no clause there leaves out only those with the same number.
pub(super) const ADD_ENTRIES: ManySql = ManySql {
    postgres: "INSERT INTO semel_saga_entry (saga, seq, kind, step, nth, op, attempt, epoch, at, safe_until, input, body) \
               SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) ON CONFLICT (saga, seq) DO NOTHING",
    mysql: MysqlMany {
        before: "INSERT INTO semel_saga_entry (saga, seq, kind, step, nth, op, attempt, epoch, at, safe_until, input, body) \
                 VALUES ",
        row: "(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        between: ", ",
        after: "",
    },
    sqlite: "INSERT INTO semel_saga_entry (saga, seq, kind, step, nth, op, attempt, epoch, at, safe_until, input, body) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) ON CONFLICT (saga, seq) DO NOTHING",
};

pub(super) const PUT_ROWS: ManySql = ManySql {
    postgres: "UPDATE semel_saga s SET status = v.status, reason = v.reason, undo_cause = v.undo_cause, epoch = v.epoch, \
               worker = v.worker, due_at = v.due_at, deadline = v.deadline, signals = v.signals, \
               cancelled = v.cancelled, expires_at = v.expires_at, outcome = coalesce(v.outcome, s.outcome) \
               FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AS v (n, status, reason, undo_cause, epoch, \
               worker, due_at, deadline, signals, cancelled, expires_at, outcome) WHERE s.n = v.n",
    mysql: MysqlMany { before: "", row: PUT.mysql, between: "; ", after: "" },
    sqlite: PUT.sqlite,
};

/// Starts sagas whose intents have none. On MySQL it fails if one has: see [`STARTED_ROWS`].
pub(super) const START_ROWS: ManySql = ManySql {
    postgres: concat!(
        "INSERT INTO semel_saga (id, ",
        row_columns!(),
        ", name, version, scope, operation, key, recipe, digest, input, created_at) SELECT * FROM unnest($1, $2, $3, \
         $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20) ON CONFLICT (id) DO NOTHING \
         RETURNING n, id"
    ),
    mysql: MysqlMany {
        before: concat!(
            "INSERT INTO semel_saga (id, ",
            row_columns!(),
            ", name, version, scope, operation, `key`, recipe, digest, input, created_at) VALUES "
        ),
        row: "(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)",
        between: ", ",
        after: "",
    },
    sqlite: concat!(
        "INSERT INTO semel_saga (id, ",
        row_columns!(),
        ", name, version, scope, operation, key, recipe, digest, input, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, \
         ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20) ON CONFLICT (id) DO NOTHING RETURNING n, id"
    ),
};

/// Which of these intents have a saga, and its number. MySQL only: its insert returns nothing.
pub(super) const STARTED_ROWS: ManySql = ManySql {
    postgres: "",
    mysql: MysqlMany {
        before: "SELECT n, id FROM semel_saga WHERE id IN (",
        row: "?1",
        between: ", ",
        after: ")",
    },
    sqlite: "",
};
