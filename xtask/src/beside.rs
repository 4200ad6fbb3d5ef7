//! Busy processes beside a test run: what passes only on a quiet machine fails here.

use std::process::{Child, Command, Stdio};

/// Processes that do nothing but keep a core busy. They end with this value.
pub(crate) struct Beside(Vec<Child>);

impl Beside {
    /// Starts this many.
    pub(crate) fn start(count: usize) -> Result<Self, String> {
        let mut beside = Self(Vec::new());
        for _ in 0..count {
            let mut shell = Command::new("sh");
            // Ends by itself too if this process is killed: its parent is then another one.
            shell.args(["-c", "while [ \"$(ps -o ppid= -p $$)\" -eq \"$1\" ]; do i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; done", "busy"]);
            shell.arg(std::process::id().to_string());
            shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            beside.0.push(shell.spawn().map_err(|error| format!("cannot start a busy process: {error}"))?);
        }
        Ok(beside)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
