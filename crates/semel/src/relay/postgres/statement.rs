//! The statements, and the types of their parameters.

use tokio_postgres::types::Type;

use crate::fault::Hook;
use crate::store::postgres::statement::Sql;

/// Finds transactions that began after `low` if they are few: by the index on xid, then sorted. `+ 0` keeps the planner
/// from scanning the index on seq from one end, without knowing where the matching rows begin.
const FEW: [&str; 2] = [
    "o.xid >= (SELECT pg_snapshot_xmax(low) FROM given) AND o.xid < (SELECT pg_snapshot_xmax(high) FROM given)
            AND o.seq + 0 > $3::bigint AND o.seq + 0 <= (SELECT last FROM reach) AND $8::bigint IS NOT NULL",
    "o.seq + 0",
];
/// If they are many: by the index on seq, from the lowest on. Nearly all rows there are of the window or of late
/// transactions: a chunk passes only the late rows within its range, not all of them.
const MANY: [&str; 2] = [
    "o.seq > greatest($3::bigint, $8::bigint) AND o.seq <= (SELECT last FROM reach)
            AND NOT pg_visible_in_snapshot(o.xid, (SELECT low FROM given))
            AND o.xid <> ALL (ARRAY(SELECT pg_snapshot_xip(low) FROM given))",
    "o.seq",
];

/// How a planted bug changes a statement.
pub(in crate::relay) type Edit = fn(&str) -> String;

pub(in crate::relay) struct Statements {
    pub(in crate::relay) open: Sql,
    pub(in crate::relay) few: Sql,
    pub(in crate::relay) many: Sql,
    pub(in crate::relay) floor: Sql,
    pub(in crate::relay) record_chunk: Sql,
    pub(in crate::relay) advance: Sql,
    pub(in crate::relay) park: Sql,
    pub(in crate::relay) due: Sql,
    pub(in crate::relay) retried: Sql,
    pub(in crate::relay) heartbeat: Sql,
    pub(in crate::relay) still_parked: Sql,
    pub(in crate::relay) free: Sql,
    pub(in crate::relay) take: Sql,
    pub(in crate::relay) acquire_exclusive: Sql,
    pub(in crate::relay) release: Sql,
    pub(in crate::relay) release_all: Sql,
    pub(in crate::relay) settle: Sql,
    pub(in crate::relay) prune_keys: Sql,
    pub(in crate::relay) lag: Sql,
    pub(in crate::relay) rebase: Sql,
}

/// Every fenced statement takes the partitions (column `lane`) and their epochs first.
const FENCE: [Type; 2] = [Type::INT2_ARRAY, Type::INT8_ARRAY];

impl Statements {
    pub(in crate::relay) fn new(edit: &Hook<Edit>) -> Self {
        // Leaks once per opened outbox: a session finds prepared statements by the text's address.
        let sql = |text: &str, types: &[Type]| {
            let text = edit.get().map_or_else(|| text.to_owned(), |edit| edit(text));
            Sql { text: text.leak(), types: types.to_vec().leak() }
        };
        let read = |[fresh, order]: [&str; 2]| {
            let text = include_str!("sql/read.sql").replace("{fresh}", fresh).replace("{order}", order);
            let int = Type::INT8;
            let types = [
                Type::TEXT,
                Type::TEXT,
                int.clone(),
                int.clone(),
                int.clone(),
                int.clone(),
                Type::INT2_ARRAY,
                int,
            ];
            sql(&text, &types)
        };
        let fenced = |text: &str, more: &[Type]| sql(text, &[&FENCE[..], more].concat());
        Self {
            open: sql(include_str!("sql/open.sql"), &[Type::TEXT, Type::TEXT, Type::INT8]),
            few: read(FEW),
            many: read(MANY),
            floor: sql(include_str!("sql/floor.sql"), &[Type::TEXT, Type::INT8, Type::TEXT, Type::INT8]),
            record_chunk: fenced(
                include_str!("sql/record_chunk.sql"),
                &[Type::TEXT, Type::TEXT, Type::INT8, Type::INT8, Type::TEXT_ARRAY],
            ),
            advance: fenced(include_str!("sql/advance.sql"), &[Type::INT8, Type::TEXT_ARRAY]),
            park: fenced(
                include_str!("sql/park.sql"),
                &[
                    Type::INT8,
                    Type::INT8_ARRAY,
                    Type::TEXT_ARRAY,
                    Type::TEXT_ARRAY,
                    Type::BOOL_ARRAY,
                    Type::INT8,
                ],
            ),
            due: sql(include_str!("sql/due.sql"), &[Type::INT2_ARRAY, Type::INT8, Type::INT8]),
            retried: fenced(
                include_str!("sql/retried.sql"),
                &[
                    Type::INT8_ARRAY,
                    Type::INT8_ARRAY,
                    Type::TEXT_ARRAY,
                    Type::TEXT_ARRAY,
                    Type::BOOL_ARRAY,
                    Type::INT8_ARRAY,
                    Type::TEXT_ARRAY,
                    Type::INT8,
                ],
            ),
            heartbeat: sql(include_str!("sql/heartbeat.sql"), &[Type::TEXT, Type::INT8]),
            take: sql(include_str!("sql/take.sql"), &[Type::TEXT, Type::INT2_ARRAY, Type::TEXT]),
            free: sql(include_str!("sql/free.sql"), &[Type::TEXT]),
            acquire_exclusive: sql(
                include_str!("sql/acquire_exclusive.sql"),
                &[Type::TEXT, Type::INT2_ARRAY, Type::TEXT],
            ),
            still_parked: sql(include_str!("sql/still_parked.sql"), &[Type::INT8_ARRAY]),
            release: fenced(include_str!("sql/release.sql"), &[]),
            release_all: sql(include_str!("sql/release_all.sql"), &[Type::TEXT]),
            settle: fenced(include_str!("sql/settle.sql"), &[Type::TEXT]),
            prune_keys: sql(include_str!("sql/prune_keys.sql"), &[Type::INT8, Type::INT8]),
            lag: sql(
                include_str!("sql/lag.sql"),
                &[Type::TEXT, Type::TEXT, Type::INT8, Type::INT2_ARRAY, Type::INT8],
            ),
            rebase: sql(include_str!("sql/rebase.sql"), &[Type::TEXT, Type::BOOL]),
        }
    }
}
