//! Whole worlds in virtual time: the real guard, client, relay and consumer over simulated ends.
//!
//! One seed is one history, the same every time: it draws the settings, the actions and the faults as a
//! [`Plan`](World::Plan), which is data. A world plays the plan on one thread with a paused clock and judges what
//! happened by what the simulated ends wrote down, never by what the code under test says of itself.
//!
//! | module | what it decides |
//! |---|---|
//! | [`world`] | what a world is: how a plan is drawn, played, made smaller |
//! | [`stage`] | what a world is given while it plays: virtual time, the trace, the figures, the planted bug |
//! | [`process`] | a simulated process: killed, stalled, resumed as one |
//! | [`play`] | one history, and whether it repeats |
//! | [`minimise`] | the smallest plan that still breaks the same law |
//! | [`many`] | many histories on all cores, and the first that breaks a law |
//! | [`known`] | a minimised history kept as a file |
//! | [`worlds`] | the worlds |

pub mod known;
pub mod many;
pub mod minimise;
pub mod play;
pub mod process;
pub mod stage;
pub mod world;
pub mod worlds;

pub use stage::{Figures, Stage};
pub use world::{Violation, World};
