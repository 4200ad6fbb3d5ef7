//! Locks between processes: `flock` on a file, with a bound on the waiting.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::error::{Error, Result};
use super::process::wait_until;

/// Whether others may hold the lock at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Shared,
    Exclusive,
}

/// A lock that is held until dropped. The kernel frees it when the process dies.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock. Two holders in one process exclude each other like two processes do.
    pub(super) fn take(path: &Path, mode: Mode, at_most: Duration) -> Result<Self> {
        let open = || {
            if let Some(dir) = path.parent() {
                std::fs::create_dir_all(dir)?;
            }
            OpenOptions::new().create(true).truncate(false).write(true).open(path)
        };
        let file = open().map_err(|error| Error::new(format!("{}: {error}", path.display())))?;
        let operation = match mode {
            Mode::Shared => FlockOperation::NonBlockingLockShared,
            Mode::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        if wait_until(at_most, || flock(&file, operation).is_ok()) {
            return Ok(Self { _file: file });
        }
        Err(Error::new(format!("{} is still locked after {} s", path.display(), at_most.as_secs())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusive_excludes_and_shared_shares() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/use.lock");
        let take = |mode| Lock::take(&path, mode, Duration::ZERO);
        let first = take(Mode::Shared).unwrap();
        let second = take(Mode::Shared).unwrap();
        assert!(take(Mode::Exclusive).is_err());
        drop((first, second));
        let alone = take(Mode::Exclusive).unwrap();
        assert!(take(Mode::Shared).is_err());
        assert!(take(Mode::Exclusive).is_err());
        drop(alone);
        assert!(take(Mode::Shared).is_ok());
    }
}
