//! The embedded default: one SQLite file.
