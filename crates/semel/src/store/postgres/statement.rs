//! The statements and the types of their parameters.

use std::sync::LazyLock;

use tokio_postgres::types::Type;

/// A statement. The types of its parameters are given, so that it can be sent in one round trip.
pub(crate) struct Sql {
    pub(crate) text: &'static str,
    pub(crate) types: &'static [Type],
}

pub(crate) static CLAIM: Sql = Sql {
    text: include_str!("sql/claim.sql"),
    types: &[
        Type::BYTEA_ARRAY,
        Type::INT8_ARRAY,
        Type::BYTEA_ARRAY,
        Type::BYTEA_ARRAY,
        Type::INT8_ARRAY,
        Type::INT2_ARRAY,
        Type::INT8_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::BOOL_ARRAY,
        Type::INT4,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
    ],
};

pub(crate) static OPERATIONS: Sql = Sql {
    text: "INSERT INTO semel_operation (name)
           SELECT name FROM unnest($1::text[]) AS asked (name)
           WHERE NOT EXISTS (SELECT FROM semel_operation known WHERE known.name = asked.name)",
    types: &[Type::TEXT_ARRAY],
};

pub(crate) static FINISH: Sql = Sql {
    text: include_str!("sql/finish.sql"),
    types: &[
        Type::BYTEA_ARRAY,
        Type::BYTEA_ARRAY,
        Type::INT8_ARRAY,
        Type::INT2_ARRAY,
        Type::INT8_ARRAY,
        Type::BYTEA_ARRAY,
    ],
};

pub(crate) static RENEW: Sql = Sql {
    text: include_str!("sql/renew.sql"),
    types: &[Type::BYTEA_ARRAY, Type::BYTEA_ARRAY, Type::INT8_ARRAY, Type::INT8_ARRAY],
};

pub(crate) static RECORD: Sql = Sql { text: include_str!("sql/record.sql"), types: &[Type::BYTEA] };

pub(crate) static DECIDE: Sql = Sql {
    text: include_str!("sql/decide.sql"),
    types: &[
        Type::BYTEA,
        Type::INT8,
        Type::INT2,
        Type::INT8,
        Type::INT2,
        Type::BYTEA,
        Type::INT8,
        Type::INT8,
        Type::TEXT,
        Type::BYTEA,
        Type::INT2,
    ],
};

pub(crate) static SWEEP: Sql = Sql { text: include_str!("sql/sweep.sql"), types: &[Type::INT8, Type::INT4] };

pub(crate) static NOW: Sql =
    Sql { text: "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now", types: &[] };

pub(crate) static FLOOR: Sql = Sql {
    text: "SELECT seq FROM semel_intent WHERE seq < $1::bigint ORDER BY seq DESC LIMIT 1 OFFSET $2::bigint",
    types: &[Type::INT8, Type::INT8],
};

const LIST_TYPES: &[Type] = &[
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::INT4,
    Type::TEXT,
    Type::TEXT,
    Type::INT8,
    Type::INT8,
    Type::INT8,
];

pub(crate) static LIST: LazyLock<Sql> = LazyLock::new(|| list(""));
pub(crate) static LIST_OPEN: LazyLock<Sql> = LazyLock::new(|| list("AND i.state < 2"));

fn list(open: &str) -> Sql {
    // Leaks twice in a process: once per list statement.
    let text = include_str!("sql/list.sql").replace("{open}", open);
    Sql { text: Box::leak(text.into_boxed_str()), types: LIST_TYPES }
}
