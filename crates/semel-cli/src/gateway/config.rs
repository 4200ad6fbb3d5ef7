//! The configuration file. Unknown keys are errors: a misspelled `retention` must not fall back to the default.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use http::Uri;
use http::header::HeaderName;
use semel::http::{KeyRule, On5xx, Profile};
use semel::{Effect, KeyFormat, Preset, Retention, StoreDown};
use serde::Deserialize;

use super::de::{Duplicates, Level, Question, Size, Tenant, Text};
use crate::failure::Failed;
use crate::keys::KeySource;

/// Largest configuration that is read.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// The contents of a configuration file. Missing settings come from flags and defaults.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    pub(super) listen: Option<SocketAddr>,
    pub(super) admin: Option<SocketAddr>,
    pub(super) admin_insecure: Option<bool>,
    pub(super) upstream: Option<Text<Uri>>,
    pub(super) keep_host: Option<bool>,
    pub(super) store: Option<String>,
    pub(super) cache: Option<String>,
    pub(super) profile: Option<Text<Profile>>,
    pub(super) key_header: Option<Text<HeaderName>>,
    pub(super) require_key: Option<bool>,
    pub(super) shadow: Option<bool>,
    pub(super) log: Option<Text<Level>>,
    pub(super) status_path: Option<String>,
    pub(super) status_secret: Option<Text<KeySource>>,
    pub(super) trusted_proxies: Option<Vec<String>>,
    pub(super) scope: ScopeTable,
    pub(super) limits: LimitsTable,
    pub(super) timeouts: TimeoutsTable,
    pub(super) recover: RecoverTable,
    pub(super) protect: ProtectTable,
    pub(super) operation: Vec<OperationTable>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ScopeTable {
    pub(super) tenant: Option<Text<Tenant>>,
    pub(super) single_tenant: Option<bool>,
    pub(super) authorize: Option<Text<Question>>,
    pub(super) authorize_headers: Vec<Text<HeaderName>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LimitsTable {
    pub(super) connections_max: Option<usize>,
    pub(super) streams_max: Option<u32>,
    pub(super) head_bytes_max: Option<usize>,
    pub(super) headers_max: Option<usize>,
    pub(super) buffered_bytes_max: Option<usize>,
    pub(super) upstream_requests_max: Option<usize>,
    pub(super) upstream_idle_max: Option<usize>,
    pub(super) new_intents_per_s: Option<f64>,
    pub(super) new_intents_burst: Option<u32>,
    pub(super) attempts_per_key_per_s: Option<f64>,
    pub(super) attempts_burst: Option<u32>,
    pub(super) stored_bytes_max: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ProtectTable {
    pub(super) compress_above: Option<Text<Size>>,
    pub(super) keys: Option<Text<KeySource>>,
    pub(super) refuse_plain: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RecoverTable {
    pub(super) reconcile_every: Option<Text<Duration>>,
    pub(super) lookups_max: Option<usize>,
    pub(super) lookups_at_once: Option<usize>,
    pub(super) pause_min: Option<Text<Duration>>,
    pub(super) pause_max: Option<Text<Duration>>,
    pub(super) sweep_every: Option<Text<Duration>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TimeoutsTable {
    pub(super) header_read: Option<Text<Duration>>,
    pub(super) idle: Option<Text<Duration>>,
    pub(super) body_idle: Option<Text<Duration>>,
    pub(super) write_idle: Option<Text<Duration>>,
    pub(super) linger: Option<Text<Duration>>,
    pub(super) connect: Option<Text<Duration>>,
    pub(super) response: Option<Text<Duration>>,
    pub(super) response_idle: Option<Text<Duration>>,
    pub(super) upstream_idle: Option<Text<Duration>>,
    pub(super) drain: Option<Text<Duration>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OperationTable {
    pub(super) r#match: String,
    pub(super) name: Option<String>,
    pub(super) preset: Option<Text<Preset>>,
    pub(super) key: Option<Text<KeyRule>>,
    pub(super) key_bytes_min: Option<usize>,
    pub(super) key_format: Option<Text<KeyFormat>>,
    pub(super) retention: Option<Text<Retention>>,
    pub(super) lease: Option<Text<Duration>>,
    pub(super) in_flight: Option<Text<Duplicates>>,
    pub(super) effect: Option<Text<Effect>>,
    pub(super) safe_for: Option<Text<Duration>>,
    pub(super) on_5xx: Option<Text<On5xx>>,
    pub(super) lookup: Option<Text<Question>>,
    pub(super) lookup_settle: Option<Text<Duration>>,
    pub(super) lookup_status: Option<u16>,
    pub(super) lookup_absent: Option<u16>,
    pub(super) lookup_host: Option<String>,
    #[serde(default)]
    pub(super) lookup_headers: BTreeMap<String, String>,
    pub(super) store_down: Option<Text<StoreDown>>,
    pub(super) verify: Option<bool>,
    pub(super) body_bytes_max: Option<usize>,
    pub(super) response_bytes_max: Option<usize>,
    #[serde(default)]
    pub(super) replay_headers: Vec<Text<HeaderName>>,
}

impl File {
    /// Reads a file; an error names the line.
    pub(super) fn read(path: &Path) -> Result<Self, Failed> {
        let shown = path.display();
        let wrong = |why: &dyn std::fmt::Display| Failed::usage(format!("cannot read {shown}: {why}"));
        let size = std::fs::metadata(path).map_err(|error| wrong(&error))?.len();
        if size > CONFIG_BYTES_MAX {
            return Err(wrong(&format!("it has {size} bytes; at most {CONFIG_BYTES_MAX}")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
        Self::parse(&text).map_err(|(line, why)| Failed::usage(format!("{shown}:{line}: {why}")))
    }

    fn parse(text: &str) -> Result<Self, (usize, String)> {
        toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
            (line, error.message().to_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of each table, and the words that a key takes, as the errors name them.
    #[test]
    fn contract_keys_of_the_configuration() {
        const TABLES: [&str; 6] =
            ["", "[scope]\n", "[limits]\n", "[protect]\n", "[recover]\n", "[timeouts]\n"];
        let operation = "[[operation]]\nmatch = \"POST /a\"\n";
        let mut listing = String::new();
        for table in TABLES.into_iter().chain([operation]) {
            let (_, keys) = File::parse(&format!("{table}no_such_key = 1\n")).unwrap_err();
            let keys = keys.split('`').skip(3).step_by(2);
            for key in keys {
                let words = File::parse(&format!("{table}{key} = \"no such word\"\n")).err();
                let words =
                    words.and_then(|(_, why)| why.split_once("; use ").map(|(_, words)| words.to_owned()));
                let name = table.split(']').next().unwrap().trim_start_matches('[');
                let words = words.map(|words| format!(" = {words}")).unwrap_or_default();
                listing += &format!(
                    "{}{key}{words}\n",
                    if name.is_empty() { String::new() } else { format!("{name}.") }
                );
            }
        }
        crate::contracts::pinned("config", &listing);
    }

    #[test]
    fn an_error_names_its_line() {
        for (text, line, says) in [
            ("listen = \"127.0.0.1:1\"\nlisten_on = 1\n", 2, "unknown field `listen_on`"),
            ("[scope]\ntenant = \"header:Authorization\"\n", 2, "would be a new intent"),
            ("\n[[operation]]\nmatch = \"POST /a\"\nretention = \"7\"\n", 4, "is not a duration"),
            ("[[operation]]\nmatch = \"POST /a\"\nretentoin = \"7d\"\n", 3, "unknown field `retentoin`"),
            ("[[operation]]\nname = \"a\"\n", 1, "missing field `match`"),
            ("[timeouts]\nidle = 5\n", 2, "invalid type"),
            ("listen = \n", 1, "string"),
            ("listen = \"nowhere\"\n", 1, "invalid socket address"),
        ] {
            let (at, why) = File::parse(text).unwrap_err();
            assert!(at == line && why.contains(says), "{text}: line {at}: {why}");
        }
    }
}
