//! Prometheus's own tool, which checks and tests rules.

use std::path::PathBuf;

use super::error::{Error, Result};
use super::install::install_packages;
use super::recipe::program;

/// The path of `promtool`. Installs Debian's package if it is missing and we are root.
pub fn promtool() -> Result<PathBuf> {
    if let Some(found) = program("promtool") {
        return Ok(found);
    }
    install_packages(&["prometheus".to_owned()])?;
    program("promtool").ok_or_else(|| Error::new("promtool is not in Debian's package prometheus"))
}
