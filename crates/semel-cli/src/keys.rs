//! The keys that outcomes are sealed with: `file:PATH` or `env:NAME`.

use std::fmt;
use std::path::PathBuf;

use semel::store::AnyStore;
use semel::store::protect::{Keys, Protected, Protection};

/// Largest key file that is read.
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
        // The value may be the secret itself, so the message does not repeat it.
        _ => Err("give where the secret is stored, not the secret: use file:PATH or env:NAME".to_owned()),
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

/// Keys, and a warning about them.
pub(crate) struct Loaded {
    pub(crate) keys: Keys,
    pub(crate) warning: Option<String>,
}

impl KeySource {
    /// Reads the keys. An error never contains a part of a key.
    pub(crate) fn load(&self) -> Result<Loaded, String> {
        let (text, warning) = self.text("keys")?;
        let keys = Keys::parse(&text).map_err(|error| format!("the keys in {self}: {error}"))?;
        Ok(Loaded { keys, warning })
    }

    /// The text, and a warning about it.
    pub(crate) fn text(&self, what: &str) -> Result<(String, Option<String>), String> {
        Ok(match self {
            Self::Env(name) => {
                let text =
                    std::env::var(name).map_err(|_| format!("the environment variable {name} is not set"))?;
                // An environment variable is best kept on one line, so `;` separates as well.
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
                            "{} can be read by users other than its owner; run chmod 600 on it",
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

/// The store with its outcomes protected. Also without keys: outcomes compressed earlier must stay readable.
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
