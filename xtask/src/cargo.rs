//! How cargo is called.

use std::process::Command;

use serde_json::Value;

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

/// Those of the named packages that have a library.
pub(crate) fn libraries(named: &[String]) -> Result<Vec<String>, String> {
    if named.is_empty() {
        return Ok(Vec::new());
    }
    let output = command(&["metadata", "--no-deps", "--format-version", "1"], &[], &[]).output();
    let output = output.map_err(|error| format!("cannot run cargo: {error}"))?;
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}: {}", String::from_utf8_lossy(&output.stderr)))?;
    let is_library = |target: &Value| target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(is_lib));
    let has_library = |name: &&String| {
        let mut packages = metadata["packages"].as_array().into_iter().flatten();
        packages.find(|package| package["name"] == name.as_str()).is_some_and(|package| {
            package["targets"].as_array().is_some_and(|all| all.iter().any(is_library))
        })
    };
    Ok(named.iter().filter(has_library).cloned().collect())
}

fn is_lib(kind: &Value) -> bool {
    kind == "lib" || kind == "proc-macro"
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
    fn a_package_with_a_library_is_known() {
        let named = ["semel-cli", "semel", "semel-macros", "xtask"].map(str::to_owned);
        assert_eq!(libraries(&named).unwrap(), ["semel", "semel-macros"]);
        assert_eq!(libraries(&[]).unwrap(), [""; 0]);
    }

    #[test]
    fn all_of_the_workspace_or_the_packages_named() {
        assert_eq!(packages(&[]), ["--all-features", "--workspace"]);
        assert_eq!(packages(&["a".to_owned()]), ["--all-features", "--package", "a"]);
    }
}
