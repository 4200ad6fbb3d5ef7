//! Installs the Debian packages that are missing, and starts nothing while doing so.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::catalogue::Service;
use super::error::{Error, Result};
use super::instance::root;
use super::lock::{Lock, Mode};
use super::recipe::{program, run};

const INSTALL_MINUTES_MAX: u64 = 20;

/// The script that Debian's maintainer scripts ask before they start a daemon.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Marks a policy as ours, so that one left behind by a run that was killed is recognised.
const OURS: &str = "#!/bin/sh\n# semel: nothing is started while packages are installed\nexit 101\n";

/// Installs what these services need and is not there. Returns the packages it installed.
pub fn install(services: &[Service]) -> Result<Vec<String>> {
    let wanted: BTreeSet<&str> = services
        .iter()
        .filter(|service| service.given().is_none())
        .map(|service| service.recipe())
        .flat_map(|recipe| recipe.needs().iter().filter(|need| !recipe.has(need.program)))
        .map(|need| need.package)
        .collect();
    let packages: Vec<String> = wanted.into_iter().map(str::to_owned).collect();
    install_packages(&packages)?;
    Ok(packages)
}

/// Installs these Debian packages when we are root; otherwise says how to.
pub fn install_packages(packages: &[String]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let line = format!("apt-get install -y --no-install-recommends {}", packages.join(" "));
    if program("apt-get").is_none() {
        return Err(Error::new(format!(
            "not installed: {}; this is not a Debian system, install them by its own means",
            packages.join(", ")
        )));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Error::new(format!("not installed: {}; run: sudo {line}", packages.join(", "))));
    }
    let patience = Duration::from_secs(INSTALL_MINUTES_MAX * 60);
    let _lock = Lock::take(&root().join("install.lock"), Mode::Exclusive, patience)?;
    let _policy = Policy::put(Path::new(POLICY))?;
    if !lists_are_there() {
        run(apt(&["update"]))?;
    }
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(packages.iter().map(String::as_str));
    if run(apt(&arguments)).is_ok() {
        return Ok(());
    }
    // Old lists name versions that the archive no longer has.
    run(apt(&["update"]))?;
    run(apt(&arguments)).map(drop).map_err(|error| error.of(format!("could not install by `{line}`")))
}

fn apt(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    // Another apt may be at work: wait for its lock instead of failing.
    command.args(["-q", "-o", "DPkg::Lock::Timeout=300"]).args(arguments);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn lists_are_there() -> bool {
    fs::read_dir("/var/lib/apt/lists").is_ok_and(|mut entries| {
        entries
            .any(|entry| entry.is_ok_and(|entry| entry.file_name().to_string_lossy().contains("_Packages")))
    })
}

/// Our policy in place of the machine's, which comes back when this is dropped.
struct Policy {
    path: PathBuf,
    saved: PathBuf,
}

impl Policy {
    fn put(path: &Path) -> Result<Self> {
        let policy = Self { path: path.to_owned(), saved: path.with_extension("d.semel-saved") };
        // A saved one that is still there is the original: we were killed before putting it back.
        if !policy.saved.exists() && fs::read_to_string(path).is_ok_and(|text| text != OURS) {
            fs::rename(path, &policy.saved)?;
        }
        fs::write(path, OURS)?;
        fs::set_permissions(path, Permissions::from_mode(0o755))?;
        Ok(policy)
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        let _ = if self.saved.exists() {
            fs::rename(&self.saved, &self.path)
        } else {
            fs::remove_file(&self.path)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_was_there_comes_back_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy-rc.d");
        fs::write(&path, "original").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        let policy = Policy::put(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), OURS);
        drop(policy);
        assert_eq!(fs::read_to_string(&path).unwrap(), "original");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn where_there_was_none_there_is_none_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy-rc.d");
        drop(Policy::put(&path).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn one_left_behind_by_a_killed_run_is_not_taken_for_the_original() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy-rc.d");
        fs::write(&path, "original").unwrap();
        std::mem::forget(Policy::put(&path).unwrap());
        drop(Policy::put(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "original");
        fs::remove_file(&path).unwrap();
        std::mem::forget(Policy::put(&path).unwrap());
        drop(Policy::put(&path).unwrap());
        assert!(!path.exists());
    }
}
