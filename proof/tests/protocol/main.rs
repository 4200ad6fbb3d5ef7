//! The protocol under simulation and under real kills, judged from outside.
#![allow(missing_docs, unreachable_pub)]

mod simulation;
