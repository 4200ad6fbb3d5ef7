//! Kafka.
//!
//! | module | what |
//! |---|---|
//! | `client` | the configuration of all clients |
//! | `producer` | a producer that reports each record of a batch |
//! | `producer_pair` | two transactional producers that alternate |
//! | `transaction_steps` | the calls of one transaction, and what each error means for it |
//! | `version` | the broker's version, and what it cannot do |
//! | `sink`, `source` | see `semel::sink::kafka` and `semel::source::kafka` |

mod client;
pub(crate) mod producer;
pub(crate) mod producer_pair;
pub mod sink;
pub mod source;
pub(crate) mod transaction_steps;
pub(crate) mod version;
