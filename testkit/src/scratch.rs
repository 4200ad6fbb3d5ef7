//! Directories for what a test writes down.

use std::path::Path;

use tempfile::TempDir;

/// A directory of a test's own, in memory where the machine has such a place. A killed process loses nothing there, and
/// no time-out runs out because a busy disk took seconds for a flush. What needs a real disk takes one from `tempfile`.
///
/// ```
/// let directory = testkit::scratch::directory();
/// std::fs::write(directory.path().join("a"), "b").unwrap();
/// ```
pub fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    made.or_else(|_| TempDir::new()).expect("a directory for a test")
}
