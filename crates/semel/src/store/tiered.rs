//! Redis in front of a SQL store.
