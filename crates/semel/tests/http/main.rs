//! The edge over real HTTP and through tower, one file per behaviour.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod atomic;
#[cfg(feature = "axum")]
mod axum_routes;
mod bodies;
mod building;
mod callers;
mod compression;
mod contract;
mod core_table;
mod failures;
mod isolation;
mod keys;
mod long_work;
mod without_framework;
mod world;

macro_rules! here {
    ($($row:ident)*) => {
        mod core_on_memory {
            $(#[tokio::test] async fn $row() { crate::core_table::$row(crate::world::Kind::Memory).await })*
        }
        #[cfg(feature = "sqlite")]
        mod core_on_sqlite {
            $(#[tokio::test] async fn $row() { crate::core_table::$row(crate::world::Kind::Sqlite).await })*
        }
    };
}

core_table::core_rows!(here);
