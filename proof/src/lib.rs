//! Tests with real servers and real processes that are really killed.
