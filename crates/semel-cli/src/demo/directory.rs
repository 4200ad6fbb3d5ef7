//! The demo's own temporary directory, removed when it ends.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const NAMES_MAX: u32 = 100;

pub(super) struct Directory {
    path: PathBuf,
    keep: bool,
    /// The command that shows what is kept.
    inspect: fn(&str) -> String,
}

impl Directory {
    /// Creates a new one in the temporary directory; an existing one is never reused.
    pub(super) fn new(keep: bool, inspect: fn(&str) -> String) -> io::Result<Self> {
        let parent = std::env::temp_dir();
        for _ in 0..NAMES_MAX {
            let path = parent.join(format!("semel-demo-{:08x}", fastrand::u32(..)));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path, keep, inspect }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let message = format!(
                        "could not create a directory in {} ({error}); set TMPDIR to another place",
                        parent.display()
                    );
                    return Err(io::Error::other(message));
                }
            }
        }
        Err(io::Error::other(format!(
            "{} is full of directories of old demos; remove semel-demo-* there",
            parent.display()
        )))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let path = self.path.display().to_string();
        if self.keep {
            eprintln!("kept: {path}; inspect it with `{}`", (self.inspect)(&path));
        } else if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("could not remove {path}: {error}");
        }
    }
}

/// The gateway's store.
pub(super) fn store(directory: &Path) -> PathBuf {
    directory.join("semel.db")
}

/// The gateway's store, as a URL.
pub(super) fn store_url(directory: &Path) -> String {
    format!("sqlite:{}", store(directory).display())
}

/// The ledger of the service behind the gateway.
pub(super) fn ledger(directory: &Path) -> PathBuf {
    directory.join("with-semel.ledger")
}

/// The ledger of the service without a gateway.
pub(super) fn bare_ledger(directory: &Path) -> PathBuf {
    directory.join("without-semel.ledger")
}

/// The gateway's configuration.
pub(super) fn config(directory: &Path) -> PathBuf {
    directory.join("gateway.toml")
}

/// The gateway's log.
pub(super) fn log(directory: &Path) -> PathBuf {
    directory.join("gateway.log")
}
