//! What the build itself needs: rustfmt, clippy and a C compiler.

use std::process::{Command, Stdio};

use testkit::services::install_packages;

/// Makes sure that the tools are there, installing what can be installed.
pub(crate) fn ensure() -> Result<(), String> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !works("cargo", &[subcommand, "--version"]) {
            // Without rustup this fails too, and the message says what to do.
            let added = works("rustup", &["component", "add", component]);
            if !added || !works("cargo", &[subcommand, "--version"]) {
                return Err(format!("{component} is missing; run: rustup component add {component}"));
            }
        }
    }
    // SQLite and librdkafka are C; librdkafka is built by make.
    if !works("cc", &["--version"]) || !works("make", &["--version"]) {
        install_packages(&["build-essential".to_owned()])
            .map_err(|error| format!("a C compiler is missing: {error}"))?;
    }
    Ok(())
}

fn works(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_works_or_does_not() {
        assert!(works("true", &[]));
        assert!(!works("false", &[]));
        assert!(!works("no-such-program", &[]));
    }
}
