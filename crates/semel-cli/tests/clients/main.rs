//! Third-party and hostile clients against the real gateway, in front of a service that keeps a ledger.
#![allow(clippy::unwrap_used)]

#[cfg(feature = "crash-points")]
mod crash;
mod curl;
mod fuzz;
mod gateway;
mod http2;
mod schemathesis;
mod stripe;
mod upstream;
mod wire;
mod wrk;

use std::process::Command;
use std::time::Duration;

/// Longer than anything here takes on a slow machine.
const SOON: Duration = Duration::from_secs(30);

/// Makes sure that a program is installed; installs its package if possible.
fn need(program: &str) {
    if Command::new(program).arg("--version").output().is_err() {
        testkit::services::install_packages(&[program.to_owned()]).unwrap();
    }
}

/// A command's stdout; the command has to succeed.
fn said(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}
