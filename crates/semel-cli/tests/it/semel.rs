//! Running the binary.

use std::process::{Command, Stdio};

use serde_json::Value;

/// The result of one run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Its stdout, after a success without anything on stderr.
    pub(crate) fn out(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "{self:?}");
        self.stdout
    }

    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.out()).unwrap()
    }

    /// The one line it failed with.
    pub(crate) fn failed(self, code: i32) -> String {
        assert_eq!((self.code, self.stdout.as_str()), (code, ""), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        self.stderr.strip_prefix("semel: ").unwrap().trim_end().to_owned()
    }
}

pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(args).stdin(Stdio::null());
    for name in ["SEMEL_STORE", "SEMEL_KEYS", "SEMEL_CACHE", "SEMEL_FROM", "SEMEL_INBOX", "SEMEL_TO"] {
        command.env_remove(name);
    }
    command
}

pub(crate) fn ran(mut command: Command) -> Ran {
    let output = command.output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs it without a store.
pub(crate) fn semel(args: &[&str]) -> Ran {
    ran(command(args))
}
