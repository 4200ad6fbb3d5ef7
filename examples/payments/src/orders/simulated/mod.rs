//! Stock and bank, as servers of somebody else would be: with ledgers of their own, and faults by a seed.
//!
//! | module | what |
//! |---|---|
//! | [`stock`] | honours keys; releasing a key that reserved nothing sees to it that it never does |
//! | [`bank`] | charges as often as it is asked, and lists charges by reference |
//! | [`ledger`] | what really happened, in a SQLite file: what tests judge by |
//! | [`faults`] | answers that are lost, 5xx before and after the effect, slow ones |

pub mod bank;
pub mod faults;
pub mod ledger;
pub mod stock;
