//! What *once* means. Pure code: no I/O, no clock, no async.
//!
//! | module | what |
//! |---|---|
//! | [`key`] | the key a caller names an intent by |
//! | [`scope`] | whose intent it is |
//! | [`identity`] | scope + operation + key = [`Intent`](identity::Intent), and the ids made from it |
//! | [`fingerprint`] | what was asked for, so that another request under the same key is noticed |
//! | [`state`] | the states, and [`step`](state::step): the one function that decides everything |
//! | [`outcome`] | what execution ended in, and its stored form |
//! | [`policy`] | what protects the effect, leases, retention, key age |
//! | [`guard_expiry`] | until when a downstream service remembers a key, and with it whether a retry is safe |
//! | [`windows`] | the table of failure windows in the docs, generated from `step` |

pub mod fingerprint;
pub mod guard_expiry;
pub mod identity;
pub mod key;
pub mod outcome;
pub mod policy;
pub mod scope;
pub mod state;
pub mod windows;
