//! A private Python with packages from PyPI: for third-party clients.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::services::{install_packages, root};

/// The interpreter of a virtual environment below `target/services/python/` that has `packages`, each as
/// `name==version`. Made on first use; `python3-venv` is installed when it is missing and we are root.
pub fn with(packages: &[&str]) -> Result<PathBuf, String> {
    let name = packages.join("+").replace("==", "-");
    let folder = root().join("python").join(name);
    let (python, done) = (folder.join("bin/python3"), folder.join("done"));
    std::fs::create_dir_all(root().join("python")).map_err(|error| error.to_string())?;
    // Two tests may want it at once; the one that comes second waits and finds it made.
    let lock = std::fs::File::create(root().join("python/lock")).map_err(|error| error.to_string())?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).map_err(|error| error.to_string())?;
    if done.exists() {
        return Ok(python);
    }
    if !can_make_environments() {
        install_packages(&["python3-venv".to_owned()]).map_err(|error| error.to_string())?;
    }
    run(Command::new(interpreter()).args(["-m", "venv", "--clear"]).arg(&folder))?;
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(packages))?;
    std::fs::write(&done, "").map_err(|error| error.to_string())?;
    Ok(python)
}

/// Debian's own, where it is: that is the one `python3-venv` belongs to.
fn interpreter() -> &'static str {
    if Path::new("/usr/bin/python3").exists() { "/usr/bin/python3" } else { "python3" }
}

fn can_make_environments() -> bool {
    let probe = Command::new(interpreter()).args(["-c", "import ensurepip, venv"]).output();
    probe.is_ok_and(|output| output.status.success())
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_does_not_exist_is_a_clear_error() {
        let error = with(&["semel-no-such-package==0.0.0"]).unwrap_err();
        assert!(error.contains("semel-no-such-package"), "{error}");
    }
}
