//! The SQL statements for dead letters.

use crate::tx::driver::Sql;

/// The columns read of a dead letter. Parameters: how to read text, the name of the key column, the payload or nothing,
/// and its length. MySQL returns text with a binary collation as bytes unless it is converted.
macro_rules! columns {
    ($open:literal, $close:literal, $key:literal, $payload:literal, $length:literal) => {
        concat!(
            "SELECT n, ",
            columns!(@ $open, $close, "consumer", "source"),
            "identity, ",
            columns!(@ $open, $close, "message_id", "topic", "lineage", "place", $key, "headers"),
            $payload,
            ", ",
            $length,
            ", ",
            columns!(@ $open, $close, "content_type", "error"),
            "attempts, first_failed_at, dead_at, retry_at, dropped_at, ",
            $open,
            "dropped_why",
            $close,
            " FROM semel_inbox_dead "
        )
    };
    (@ $open:literal, $close:literal, $($column:literal),+) => {
        concat!($($open, $column, $close, ", "),+)
    };
    (mysql $payload:literal) => {
        columns!("CONVERT(", " USING utf8mb4)", "`key`", $payload, "LENGTH(payload)")
    };
    (postgres $payload:literal) => {
        columns!("", "", "key", $payload, "octet_length(payload)::bigint")
    };
    (sqlite $payload:literal) => {
        columns!("", "", "key", $payload, "length(payload)")
    };
}

macro_rules! now {
    (postgres) => {
        "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    };
    (mysql) => {
        "FLOOR(UNIX_TIMESTAMP(SYSDATE(3)) * 1000)"
    };
    (sqlite) => {
        "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
    };
}

/// MySQL's ON DUPLICATE KEY UPDATE has no condition: sets columns only if the row is of the same message or dropped.
macro_rules! same {
    ($($column:literal => $value:literal),+ $(,)?) => {
        concat!($(
            $column, " = IF(payload = VALUES(payload) OR dropped_at IS NOT NULL, ", $value, ", ", $column, "), "
        ),+)
    };
}

/// Upsert. A message that already has a dead letter updates it: new error, more attempts. A dropped one is restored,
/// with the content of this message. The dead letter of another message is not changed.
pub(super) const INSERT: Sql = Sql {
    postgres: concat!(
        "INSERT INTO semel_inbox_dead AS d (id, consumer, source, identity, message_id, topic, lineage, place, key, \
         headers, payload, content_type, error, attempts, first_failed_at, dead_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, ",
        now!(postgres),
        " - $15, ",
        now!(postgres),
        ") ON CONFLICT (id) DO UPDATE SET topic = excluded.topic, lineage = excluded.lineage, place = excluded.place, \
         key = excluded.key, content_type = excluded.content_type, error = excluded.error, attempts = d.attempts + excluded.attempts, \
         dead_at = excluded.dead_at, headers = excluded.headers, payload = excluded.payload, retry_at = NULL, \
         dropped_at = NULL, dropped_why = NULL \
         WHERE d.payload = excluded.payload OR d.dropped_at IS NOT NULL"
    ),
    mysql: concat!(
        "INSERT INTO semel_inbox_dead (id, consumer, source, identity, message_id, topic, lineage, place, `key`, \
         headers, payload, content_type, error, attempts, first_failed_at, dead_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ",
        now!(mysql),
        " - ?15, ",
        now!(mysql),
        // MySQL assigns from left to right, and each assignment sees the earlier ones: the columns tested come last.
        ") ON DUPLICATE KEY UPDATE ",
        same!(
            "topic" => "VALUES(topic)",
            "lineage" => "VALUES(lineage)",
            "place" => "VALUES(place)",
            "`key`" => "VALUES(`key`)",
            "content_type" => "VALUES(content_type)",
            "error" => "VALUES(error)",
            "attempts" => "attempts + VALUES(attempts)",
            "dead_at" => "VALUES(dead_at)",
            "headers" => "VALUES(headers)",
            "retry_at" => "NULL",
            "dropped_why" => "NULL",
            "payload" => "VALUES(payload)",
        ),
        "dropped_at = IF(payload = VALUES(payload), NULL, dropped_at)"
    ),
    sqlite: concat!(
        "INSERT INTO semel_inbox_dead (id, consumer, source, identity, message_id, topic, lineage, place, key, \
         headers, payload, content_type, error, attempts, first_failed_at, dead_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ",
        now!(sqlite),
        " - ?15, ",
        now!(sqlite),
        ") ON CONFLICT (id) DO UPDATE SET topic = excluded.topic, lineage = excluded.lineage, place = excluded.place, \
         key = excluded.key, content_type = excluded.content_type, error = excluded.error, attempts = attempts + excluded.attempts, \
         dead_at = excluded.dead_at, headers = excluded.headers, payload = excluded.payload, retry_at = NULL, \
         dropped_at = NULL, dropped_why = NULL \
         WHERE payload = excluded.payload OR dropped_at IS NOT NULL"
    ),
};

/// Whether another message has that id: same id, different payload. Locks the row, so that the answer is not from an
/// old snapshot.
pub(super) const OTHER: Sql = Sql {
    postgres: "SELECT n FROM semel_inbox_dead WHERE id = $1 AND payload <> $2 AND dropped_at IS NULL FOR UPDATE",
    mysql: "SELECT n FROM semel_inbox_dead WHERE id = ?1 AND payload <> ?2 AND dropped_at IS NULL FOR UPDATE",
    sqlite: "SELECT n FROM semel_inbox_dead WHERE id = ?1 AND payload <> ?2 AND dropped_at IS NULL",
};

pub(super) const FIND: Sql = Sql {
    postgres: concat!(columns!(postgres "payload"), "WHERE n = $1"),
    mysql: concat!(columns!(mysql "payload"), "WHERE n = ?1"),
    sqlite: concat!(columns!(sqlite "payload"), "WHERE n = ?1"),
};

pub(super) const EXISTS: Sql = Sql {
    postgres: "SELECT n FROM semel_inbox_dead WHERE n = $1 AND dropped_at IS NULL",
    mysql: "SELECT n FROM semel_inbox_dead WHERE n = ?1 AND dropped_at IS NULL",
    sqlite: "SELECT n FROM semel_inbox_dead WHERE n = ?1 AND dropped_at IS NULL",
};

pub(super) const LIST: Sql = Sql {
    postgres: concat!(
        columns!(postgres "''::bytea"),
        "WHERE ($1::text IS NULL OR consumer = $1) AND ($2::text IS NULL OR source = $2) AND n > $3 \
         AND (dropped_at IS NOT NULL) = ($4 = 1) ORDER BY n LIMIT $5"
    ),
    mysql: concat!(
        columns!(mysql "_binary ''"),
        "WHERE (?1 IS NULL OR consumer = ?1) AND (?2 IS NULL OR source = ?2) AND n > ?3 \
         AND (dropped_at IS NOT NULL) = (?4 = 1) ORDER BY n LIMIT ?5"
    ),
    sqlite: concat!(
        columns!(sqlite "x''"),
        "WHERE (?1 IS NULL OR consumer = ?1) AND (?2 IS NULL OR source = ?2) AND n > ?3 \
         AND (dropped_at IS NOT NULL) = (?4 = 1) ORDER BY n LIMIT ?5"
    ),
};

pub(super) const COUNT: Sql = Sql {
    postgres: "SELECT consumer, source, count(*) FILTER (WHERE retry_at IS NULL), count(retry_at), min(dead_at) \
               FROM semel_inbox_dead WHERE dropped_at IS NULL GROUP BY consumer, source \
               ORDER BY consumer, source LIMIT $1",
    mysql: "SELECT CONVERT(consumer USING utf8mb4), CONVERT(source USING utf8mb4), COUNT(*) - COUNT(retry_at), COUNT(retry_at), MIN(dead_at) \
            FROM semel_inbox_dead WHERE dropped_at IS NULL GROUP BY consumer, source \
            ORDER BY consumer, source LIMIT ?1",
    sqlite: "SELECT consumer, source, count(*) - count(retry_at), count(retry_at), min(dead_at) \
             FROM semel_inbox_dead WHERE dropped_at IS NULL GROUP BY consumer, source \
             ORDER BY consumer, source LIMIT ?1",
};

/// Schedules a redelivery. One that is already leased keeps its lease.
pub(super) const RETRY: Sql = Sql {
    postgres: concat!(
        "UPDATE semel_inbox_dead SET retry_at = coalesce(retry_at, ",
        now!(postgres),
        ") WHERE n = $1 AND dropped_at IS NULL"
    ),
    mysql: concat!(
        "UPDATE semel_inbox_dead SET retry_at = COALESCE(retry_at, ",
        now!(mysql),
        ") WHERE n = ?1 AND dropped_at IS NULL"
    ),
    sqlite: concat!(
        "UPDATE semel_inbox_dead SET retry_at = coalesce(retry_at, ",
        now!(sqlite),
        ") WHERE n = ?1 AND dropped_at IS NULL"
    ),
};

pub(super) const RETRY_ALL: Sql = Sql {
    postgres: concat!(
        "UPDATE semel_inbox_dead SET retry_at = ",
        now!(postgres),
        " WHERE retry_at IS NULL AND dropped_at IS NULL AND ($1::text IS NULL OR consumer = $1) \
         AND ($2::text IS NULL OR source = $2)"
    ),
    mysql: concat!(
        "UPDATE semel_inbox_dead SET retry_at = ",
        now!(mysql),
        " WHERE retry_at IS NULL AND dropped_at IS NULL AND (?1 IS NULL OR consumer = ?1) \
         AND (?2 IS NULL OR source = ?2)"
    ),
    sqlite: concat!(
        "UPDATE semel_inbox_dead SET retry_at = ",
        now!(sqlite),
        " WHERE retry_at IS NULL AND dropped_at IS NULL AND (?1 IS NULL OR consumer = ?1) \
         AND (?2 IS NULL OR source = ?2)"
    ),
};

/// Drops, but not a leased one: it may already have been handled.
pub(super) const DROP: Sql = Sql {
    postgres: concat!(
        "UPDATE semel_inbox_dead SET dropped_at = ",
        now!(postgres),
        ", dropped_why = $2, retry_at = NULL, payload = ''::bytea, headers = '[]' \
         WHERE n = $1 AND dropped_at IS NULL AND (retry_at IS NULL OR retry_at <= ",
        now!(postgres),
        ")"
    ),
    mysql: concat!(
        "UPDATE semel_inbox_dead SET dropped_at = ",
        now!(mysql),
        ", dropped_why = ?2, retry_at = NULL, payload = _binary '', headers = '[]' \
         WHERE n = ?1 AND dropped_at IS NULL AND (retry_at IS NULL OR retry_at <= ",
        now!(mysql),
        ")"
    ),
    sqlite: concat!(
        "UPDATE semel_inbox_dead SET dropped_at = ",
        now!(sqlite),
        ", dropped_why = ?2, retry_at = NULL, payload = x'', headers = '[]' \
         WHERE n = ?1 AND dropped_at IS NULL AND (retry_at IS NULL OR retry_at <= ",
        now!(sqlite),
        ")"
    ),
};

/// Dead letters due for redelivery, with their sizes: only the first of each key, so that none overtakes another,
/// whichever consumer handles them.
pub(super) const DUE: Sql = Sql {
    postgres: concat!(
        "SELECT d.n, octet_length(d.payload)::bigint FROM semel_inbox_dead d \
         WHERE d.consumer = $1 AND d.retry_at <= ",
        now!(postgres),
        " AND NOT EXISTS (SELECT FROM semel_inbox_dead e WHERE e.consumer = d.consumer AND e.retry_at IS NOT NULL \
         AND e.n < d.n AND e.key = d.key AND e.topic = d.topic) \
         ORDER BY d.n LIMIT $2 FOR UPDATE OF d SKIP LOCKED"
    ),
    mysql: concat!(
        "SELECT d.n, LENGTH(d.payload) FROM semel_inbox_dead d WHERE d.consumer = ?1 AND d.retry_at <= ",
        now!(mysql),
        " AND NOT EXISTS (SELECT 1 FROM semel_inbox_dead e WHERE e.consumer = d.consumer AND e.retry_at IS NOT NULL \
         AND e.n < d.n AND e.`key` = d.`key` AND e.topic = d.topic) ORDER BY d.n LIMIT ?2"
    ),
    sqlite: concat!(
        "SELECT d.n, length(d.payload) FROM semel_inbox_dead d WHERE d.consumer = ?1 AND d.retry_at <= ",
        now!(sqlite),
        " AND NOT EXISTS (SELECT 1 FROM semel_inbox_dead e WHERE e.consumer = d.consumer AND e.retry_at IS NOT NULL \
         AND e.n < d.n AND e.key = d.key AND e.topic = d.topic) ORDER BY d.n LIMIT ?2"
    ),
};

/// Leases one, unless another consumer has.
pub(super) const TAKE: Sql = Sql {
    postgres: concat!(
        "UPDATE semel_inbox_dead SET retry_at = ",
        now!(postgres),
        " + $2 WHERE n = $1 AND retry_at <= ",
        now!(postgres)
    ),
    mysql: concat!(
        "UPDATE semel_inbox_dead SET retry_at = ",
        now!(mysql),
        " + ?2 WHERE n = ?1 AND retry_at <= ",
        now!(mysql)
    ),
    sqlite: concat!(
        "UPDATE semel_inbox_dead SET retry_at = ",
        now!(sqlite),
        " + ?2 WHERE n = ?1 AND retry_at <= ",
        now!(sqlite)
    ),
};

/// Deletes a dead letter that was handled. It stays if an operator dropped it meanwhile, or if it was written again
/// meanwhile, because it is then unknown whether that message was handled.
pub(super) const HANDLED: Sql = Sql {
    postgres: "DELETE FROM semel_inbox_dead WHERE n = $1 AND dropped_at IS NULL AND retry_at IS NOT NULL",
    mysql: "DELETE FROM semel_inbox_dead WHERE n = ?1 AND dropped_at IS NULL AND retry_at IS NOT NULL",
    sqlite: "DELETE FROM semel_inbox_dead WHERE n = ?1 AND dropped_at IS NULL AND retry_at IS NOT NULL",
};

/// It failed again.
pub(super) const FAILED: Sql = Sql {
    postgres: concat!(
        "UPDATE semel_inbox_dead SET retry_at = NULL, error = $2, attempts = attempts + $3, dead_at = ",
        now!(postgres),
        " WHERE n = $1 AND dropped_at IS NULL AND retry_at IS NOT NULL"
    ),
    mysql: concat!(
        "UPDATE semel_inbox_dead SET retry_at = NULL, error = ?2, attempts = attempts + ?3, dead_at = ",
        now!(mysql),
        " WHERE n = ?1 AND dropped_at IS NULL AND retry_at IS NOT NULL"
    ),
    sqlite: concat!(
        "UPDATE semel_inbox_dead SET retry_at = NULL, error = ?2, attempts = attempts + ?3, dead_at = ",
        now!(sqlite),
        " WHERE n = ?1 AND dropped_at IS NULL AND retry_at IS NOT NULL"
    ),
};

pub(super) const FORGET_DROPPED: Sql = Sql {
    postgres: concat!(
        "DELETE FROM semel_inbox_dead WHERE n IN (SELECT n FROM semel_inbox_dead WHERE consumer = $1 \
         AND dropped_at < ",
        now!(postgres),
        " - $2 LIMIT $3)"
    ),
    mysql: concat!(
        "DELETE FROM semel_inbox_dead WHERE consumer = ?1 AND dropped_at < ",
        now!(mysql),
        " - ?2 LIMIT ?3"
    ),
    sqlite: concat!(
        "DELETE FROM semel_inbox_dead WHERE n IN (SELECT n FROM semel_inbox_dead WHERE consumer = ?1 \
         AND dropped_at < ",
        now!(sqlite),
        " - ?2 LIMIT ?3)"
    ),
};

pub(super) const VERSION: Sql = Sql::same("SELECT version FROM semel_inbox_meta");
