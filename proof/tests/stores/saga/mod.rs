//! Sagas on real databases.
//!
//! | module | what it shows |
//! |---|---|
//! | `journal` | the laws of journals |
//! | `killed` | a process is killed at every point of a saga, and another one goes on |
//! | `place` | a database with orders, and the ledger of the participants |
//! | `together` | a row that is locked elsewhere holds up no other saga |

mod journal;
mod killed;
mod place;
mod together;
