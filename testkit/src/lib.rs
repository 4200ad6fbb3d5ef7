//! Faults, judges and real servers for semel's tests.
