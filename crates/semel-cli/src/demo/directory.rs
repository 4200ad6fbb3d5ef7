//! A directory of the demo's own, removed with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const NAMES_MAX: u32 = 100;

pub(super) struct Directory {
    path: PathBuf,
    keep: bool,
}

impl Directory {
    /// Makes a new one where temporary files go; an existing one is never taken over.
    pub(super) fn new(keep: bool) -> io::Result<Self> {
        let parent = std::env::temp_dir();
        for _ in 0..NAMES_MAX {
            let path = parent.join(format!("semel-demo-{:08x}", fastrand::u32(..)));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path, keep }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let message = format!("{} cannot be used ({error}); set TMPDIR", parent.display());
                    return Err(io::Error::other(message));
                }
            }
        }
        Err(io::Error::other(format!("{} is full of old demos; remove them", parent.display())))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let path = self.path.display();
        if self.keep {
            eprintln!("kept: {path}; look with `semel ls --store sqlite:{path}/semel.db`");
        } else if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("{path} could not be removed: {error}");
        }
    }
}

/// The gateway's store in it.
pub(super) fn store(directory: &Path) -> PathBuf {
    directory.join("semel.db")
}

/// The same as a URL.
pub(super) fn store_url(directory: &Path) -> String {
    format!("sqlite:{}", store(directory).display())
}

/// The ledger of the service behind the gateway.
pub(super) fn ledger(directory: &Path) -> PathBuf {
    directory.join("with-semel.ledger")
}

/// The ledger of the service that is asked directly.
pub(super) fn bare_ledger(directory: &Path) -> PathBuf {
    directory.join("without-semel.ledger")
}

/// What the gateway is told.
pub(super) fn config(directory: &Path) -> PathBuf {
    directory.join("gateway.toml")
}

/// What it has to say.
pub(super) fn log(directory: &Path) -> PathBuf {
    directory.join("gateway.log")
}
