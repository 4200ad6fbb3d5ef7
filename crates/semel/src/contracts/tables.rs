//! The tables of every dialect, as a new database gets them.

use testkit::contract::sql_listing;

use super::pinned;
use crate::tx::driver::Dialect;
use crate::{inbox, outbox, store, tx};

fn list(dialect: Dialect, store: &str, more: &[(&str, &str)]) -> String {
    let mut listing = String::new();
    let mut part = |what: &str, version: Option<u32>, sql: &str| {
        let version = version.map(|version| format!(", version {version}")).unwrap_or_default();
        listing.push_str(&format!("# {what}{version}\n{}\n", sql_listing(sql)));
    };
    // Its version is in its SQL.
    part("store", None, store);
    part("outbox", Some(outbox::VERSION), outbox::schema(dialect));
    part("inbox and dead letters", Some(inbox::VERSION), inbox::schema(dialect));
    part("sagas", Some(crate::saga::sql::VERSION), crate::saga::sql::schema(dialect));
    part("ledger", None, tx::ledger::schema(dialect));
    part("references", None, tx::reference::schema(dialect));
    for (what, sql) in more {
        part(what, None, sql);
    }
    listing
}

#[test]
fn contract_tables_of_postgres() {
    let strict = outbox::strict_order_schema(Dialect::Postgres, true).unwrap();
    let more = [("outbox in strict order", strict)];
    pinned("tables.postgres", &list(Dialect::Postgres, store::postgres::SQL, &more));
}

#[test]
fn contract_tables_of_mysql() {
    pinned("tables.mysql", &list(Dialect::Mysql, store::mysql::SQL, &[]));
}

#[test]
fn contract_tables_of_sqlite() {
    let app = ("intents in the application's own file", include_str!("../tx/sql/sqlite.sql"));
    let journal = ("the journal of the client", include_str!("../http/client/durable/journal/schema.sql"));
    pinned("tables.sqlite", &list(Dialect::Sqlite, store::sqlite::schema::SQL, &[app, journal]));
}
