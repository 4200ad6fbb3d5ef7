//! Exactly-once effects on at-least-once rails.
