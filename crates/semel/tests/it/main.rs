//! What semel promises, shown from outside.

#[cfg(feature = "sqlite")]
mod sqlite_like_memory;
#[cfg(feature = "sqlite")]
mod sqlite_reopen;
#[cfg(feature = "sqlite")]
mod sqlite_support;
