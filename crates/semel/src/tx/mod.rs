//! *Once* inside the caller's own transaction: intent, rows and outcome are one commit.
//!
//! | module | what |
//! |---|---|
//! | [`driver`] | the seam to the caller's transaction: one statement, rows back |
//! | `script` | what is written once over all drivers |

pub mod driver;
pub(crate) mod script;
