//! How cargo is called.

use std::process::Command;

/// A cargo command on these packages, with all features.
pub(crate) fn command(first: &[&str], packages: &[String], last: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(first).args(packages).args(last);
    // Cargo sets these for us, and a nested cargo would take them for its own and rebuild.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name.as_ref());
        }
    }
    command
}

/// The packages named, or the whole workspace, with all features.
pub(crate) fn packages(named: &[String]) -> Vec<String> {
    let mut words = vec!["--all-features".to_owned()];
    if named.is_empty() {
        words.push("--workspace".to_owned());
    }
    for package in named {
        words.extend(["--package".to_owned(), package.clone()]);
    }
    words
}

/// Runs cargo in the foreground; it says itself what fails.
pub(crate) fn run(line: &[&str], args: &[String]) -> Result<(), String> {
    match command(line, args, &[]).status() {
        Ok(status) if status.success() => Ok(()),
        // It has said what failed.
        Ok(_) => Err(String::new()),
        Err(error) => Err(format!("cannot run cargo: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_the_workspace_or_the_packages_named() {
        assert_eq!(packages(&[]), ["--all-features", "--workspace"]);
        assert_eq!(packages(&["a".to_owned()]), ["--all-features", "--package", "a"]);
    }
}
