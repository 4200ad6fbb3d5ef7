//! Sagas on real databases.
//!
//! | module | what it shows |
//! |---|---|
//! | `conflicts` | an atomic step that the database rolls back |
//! | `journal` | the laws of journals |
//! | `killed` | a process is killed at every point of a saga, and another one goes on |
//! | `over_sqlx` | atomic steps over a pool of the application's |
//! | `place` | a database with orders, and the ledger of the participants |
//! | `restarted` | the server is killed while sagas are taken over |
//! | `shop` | sagas of this process |
//! | `together` | a row that is locked elsewhere holds up no other saga; what is too large for one packet |

mod conflicts;
mod journal;
mod killed;
mod over_sqlx;
mod place;
mod restarted;
mod shop;
mod together;
