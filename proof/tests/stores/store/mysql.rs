//! MySQL's protocol, spoken by MariaDB: the laws, the same answers as from memory, and what only a shared
//! server can do to a store.

mod doubt;
mod laws;
mod like_memory;
mod locks;
mod migration;
mod planted;
mod server;
mod support;
mod text;
mod tls;
mod unreadable;
