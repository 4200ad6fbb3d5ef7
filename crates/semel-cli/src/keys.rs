//! The keys that outcomes are sealed with: `file:PATH` or `env:NAME`.

use std::fmt;
use std::path::PathBuf;

use semel::store::AnyStore;
use semel::store::protect::{Keys, Protected, Protection};

/// Largest file of keys that is read.
const KEYS_BYTES_MAX: u64 = 64 << 10;

/// Where keys are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum KeySource {
    File(PathBuf),
    Env(String),
}

pub(crate) fn parse_source(text: &str) -> Result<KeySource, String> {
    match text.split_once(':') {
        Some(("file", path)) if !path.is_empty() => Ok(KeySource::File(path.into())),
        Some(("env", name)) if !name.is_empty() => Ok(KeySource::Env(name.to_owned())),
        // What was given may be a secret itself; it is not repeated.
        _ => Err("keys are named, not given, and so are secrets: use file:PATH or env:NAME".to_owned()),
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Env(name) => write!(f, "env:{name}"),
        }
    }
}

/// Keys, and what is worth a warning about them.
pub(crate) struct Loaded {
    pub(crate) keys: Keys,
    pub(crate) warning: Option<String>,
}

impl KeySource {
    /// Reads the keys, or says what is wrong; never with a piece of a key in it.
    pub(crate) fn load(&self) -> Result<Loaded, String> {
        let (text, warning) = self.text("keys")?;
        let keys = Keys::parse(&text).map_err(|error| format!("the keys in {self}: {error}"))?;
        Ok(Loaded { keys, warning })
    }

    /// What is there, and what is worth a warning about it.
    pub(crate) fn text(&self, what: &str) -> Result<(String, Option<String>), String> {
        Ok(match self {
            Self::Env(name) => {
                let text = std::env::var(name).map_err(|_| format!("the environment has no {name}"))?;
                // One line is all that fits comfortably there: `;` separates as well.
                (text.replace(';', "\n"), None)
            }
            Self::File(path) => {
                let wrong =
                    |why: &dyn fmt::Display| format!("cannot read the {what} in {}: {why}", path.display());
                let file = std::fs::metadata(path).map_err(|error| wrong(&error))?;
                if file.len() > KEYS_BYTES_MAX {
                    return Err(wrong(&format!("{} bytes; at most {KEYS_BYTES_MAX}", file.len())));
                }
                let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
                (
                    text,
                    readable_by_others(&file).then(|| {
                        format!(
                            "{} can be read by others than its owner; chmod 600 it, or it keeps nobody out",
                            path.display()
                        )
                    }),
                )
            }
        })
    }
}

#[cfg(unix)]
fn readable_by_others(file: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.permissions().mode() & 0o044 != 0
}

#[cfg(not(unix))]
fn readable_by_others(_: &std::fs::Metadata) -> bool {
    false
}

/// The store with its outcomes protected. Also without keys: what was compressed once is read always.
pub(crate) fn protected(store: AnyStore, protection: Protection) -> AnyStore {
    AnyStore::new(Protected::new(store, protection))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources() {
        assert_eq!(parse_source("file:/etc/semel/keys").unwrap().to_string(), "file:/etc/semel/keys");
        assert_eq!(parse_source("env:SEMEL_SEAL").unwrap().to_string(), "env:SEMEL_SEAL");
        for bad in ["", "file:", "env:", "/etc/keys", "a 1a1a1a"] {
            let error = parse_source(bad).unwrap_err();
            assert!(!error.contains("1a1a"), "{error}");
        }
    }
}
