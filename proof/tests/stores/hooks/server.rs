//! A process that receives.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use testkit::child::Child;

use crate::hooks::place::Place;

pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Server {
    pub child: Child,
    pub address: SocketAddr,
}

impl Server {
    /// One that does it right, or as `how` says, and stops at a point if one is named.
    pub fn start(place: &Place, how: &str, crash_at: Option<&str>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_proof-worker"));
        command.arg("hook");
        command.arg(how);
        place.tell(&mut command);
        let mut child = Child::spawn(command, crash_at).unwrap();
        let address = child.next_line(PATIENCE).unwrap().parse().unwrap();
        Self { child, address }
    }
}
