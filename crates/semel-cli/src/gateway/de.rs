//! Parsers for settings, run during deserialisation so that an error names its line.

use std::fmt::Display;
use std::time::Duration;

use http::header::{self, HeaderName};
use http::uri::PathAndQuery;
use http::{Method, Uri};
use semel::http::{KeyRule, On5xx, Profile};
use semel::{Effect, InFlight, KeyFormat, Preset, Retention, StoreDown};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::duration::{parse_ms, parse_retention};
use crate::keys::{KeySource, parse_source};
use crate::size::parse_bytes;

/// How far the clock of a client that makes time-ordered keys may be off.
const KEY_SKEW_MS: u64 = 60_000;

/// Values that are parsed from text in the configuration.
pub(super) trait FromText: Sized {
    fn from_text(text: &str) -> Result<Self, String>;
}

/// A setting written as text.
#[derive(Clone, Debug)]
pub(super) struct Text<T>(pub(super) T);

impl<'de, T: FromText> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        T::from_text(&text).map(Self).map_err(D::Error::custom)
    }
}

fn one_of<T: Clone>(what: &str, text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let found = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| value.clone());
    found.ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        format!("{text:?} is not a valid {what}; use {}", names.join(", "))
    })
}

impl FromText for Duration {
    fn from_text(text: &str) -> Result<Self, String> {
        match parse_ms(text)? {
            0 => Err("a duration of zero would end everything at once; use at least 1ms".to_owned()),
            ms => Ok(Self::from_millis(ms)),
        }
    }
}

impl FromText for Retention {
    fn from_text(text: &str) -> Result<Self, String> {
        parse_retention(text)
    }
}

impl FromText for Profile {
    fn from_text(text: &str) -> Result<Self, String> {
        one_of("profile", text, &Self::ALL.map(|profile| (profile.as_str(), profile)))
    }
}

impl FromText for Effect {
    fn from_text(text: &str) -> Result<Self, String> {
        if text == Self::Atomic.as_str() {
            return Err(
                "effect = \"atomic\" needs claim and rows in one transaction, which a gateway cannot \
                        have; use opaque, or keyed if the service honours the key itself"
                    .to_owned(),
            );
        }
        one_of("effect", text, &[("opaque", Self::Opaque), ("keyed", Self::Keyed)])
    }
}

impl FromText for On5xx {
    fn from_text(text: &str) -> Result<Self, String> {
        let choices = [("retry", Self::Retry), ("hold", Self::Hold), ("replay", Self::Replay)];
        one_of("on_5xx setting", text, &choices)
    }
}

impl FromText for StoreDown {
    fn from_text(text: &str) -> Result<Self, String> {
        one_of("outage policy", text, &[("closed", Self::Closed), ("open", Self::Open)])
    }
}

impl FromText for KeyRule {
    fn from_text(text: &str) -> Result<Self, String> {
        let choices =
            [("required", Self::Required), ("optional", Self::Optional), ("ignored", Self::Ignored)];
        one_of("rule for keys", text, &choices)
    }
}

impl FromText for KeyFormat {
    fn from_text(text: &str) -> Result<Self, String> {
        let ordered = Self::TimeOrdered { skew_ms: KEY_SKEW_MS };
        one_of("key format", text, &[("any", Self::Any), ("time_ordered", ordered)])
    }
}

impl FromText for Preset {
    fn from_text(text: &str) -> Result<Self, String> {
        let choices =
            [("payment", Self::Payment), ("order", Self::Order), ("notification", Self::Notification)];
        one_of("preset", text, &choices)
    }
}

/// What a duplicate gets while the first request is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Duplicates {
    pub(super) in_flight: InFlight,
    /// Answer "in progress" with 202.
    pub(super) accept: bool,
}

/// A number of bytes: `512B`, `1KiB`, `2MiB`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Size(pub(super) usize);

impl FromText for Size {
    fn from_text(text: &str) -> Result<Self, String> {
        parse_bytes(text).map(Self)
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            bytes if bytes > 0 && bytes.is_multiple_of(1 << 20) => write!(f, "{}MiB", bytes >> 20),
            bytes if bytes > 0 && bytes.is_multiple_of(1 << 10) => write!(f, "{}KiB", bytes >> 10),
            bytes => write!(f, "{bytes}B"),
        }
    }
}

impl FromText for KeySource {
    fn from_text(text: &str) -> Result<Self, String> {
        parse_source(text)
    }
}

impl FromText for Duplicates {
    fn from_text(text: &str) -> Result<Self, String> {
        let (in_flight, accept) = match text {
            "reject" => (InFlight::Reject, false),
            "accept" => (InFlight::Reject, true),
            _ => match text.strip_prefix("wait:") {
                Some(wait) => (InFlight::Wait(Duration::from_text(wait)?), false),
                None => {
                    return Err(format!("{text:?} is not a valid in_flight; use reject, accept or wait:2s"));
                }
            },
        };
        Ok(Self { in_flight, accept })
    }
}

impl FromText for HeaderName {
    fn from_text(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("{text:?} is not a header name"))
    }
}

/// Where a request's tenant comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Tenant {
    /// A header of the request, checked by a proxy in front.
    Header(HeaderName),
    /// A header of the answer to `authorize`.
    Auth(HeaderName),
}

impl FromText for Tenant {
    fn from_text(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is not where a tenant can be; use header:X-Tenant-Id or auth:X-User-Id");
        let (kind, name) = text.split_once(':').ok_or_else(wrong)?;
        let name = HeaderName::from_text(name)?;
        match kind {
            "header" => {
                stable(&name)?;
                Ok(Self::Header(name))
            }
            "auth" => Ok(Self::Auth(name)),
            _ => Err(wrong()),
        }
    }
}

fn stable(name: &HeaderName) -> Result<(), String> {
    if [header::AUTHORIZATION, header::PROXY_AUTHORIZATION, header::COOKIE].contains(name) {
        return Err(format!(
            "the header {name} cannot be the tenant: its value changes when a token is refreshed, and a retry after \
             that would be a new intent; let upstream name the principal with authorize = \"GET /whoami\" and \
             tenant = \"auth:X-User-Id\""
        ));
    }
    Ok(())
}

impl std::fmt::Display for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Auth(name) => write!(f, "auth:{name}"),
        }
    }
}

/// A read-only request to upstream: `GET /whoami`, or `GET /payments/by-key/{key}`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Question {
    pub(super) method: Method,
    pub(super) path: String,
}

impl FromText for Question {
    fn from_text(text: &str) -> Result<Self, String> {
        let wrong = |why: &dyn Display| format!("{text:?} is not a valid request to upstream: {why}");
        let (method, path) = text.split_once(' ').ok_or_else(|| wrong(&"write it like GET /whoami"))?;
        let method = match method {
            "GET" => Method::GET,
            "HEAD" => Method::HEAD,
            _ => return Err(wrong(&"it may only read; use GET or HEAD")),
        };
        let filled = path.replace("{key}", "k").replace("{tenant}", "t");
        if !filled.starts_with('/') || filled.contains(['{', '}', '#']) {
            return Err(wrong(
                &"the path must begin with a slash, and {key} and {tenant} are its only placeholders",
            ));
        }
        filled.parse::<PathAndQuery>().map_err(|error| wrong(&error))?;
        Ok(Self { method, path: path.to_owned() })
    }
}

impl Display for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

impl FromText for Uri {
    fn from_text(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("upstream {text:?} is not a valid address: {why}");
        let uri: Self = text.parse().map_err(|_| wrong("write it like http://127.0.0.1:3000"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(wrong(
                    "the gateway speaks plain HTTP to upstream; keep them on one host or a private network",
                ));
            }
            _ => return Err(wrong("write it like http://127.0.0.1:3000")),
        }
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        if authority.is_none_or(|authority| authority.host().is_empty()) {
            return Err(wrong("it must have a host and no user"));
        }
        if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
            return Err(wrong("it has a path; remove it, requests keep their own"));
        }
        Ok(uri)
    }
}

/// The log level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Level(pub(super) tracing::Level);

impl FromText for Level {
    fn from_text(text: &str) -> Result<Self, String> {
        crate::log::parse_level(text).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said() {
        for (error, says) in [
            (Effect::from_text("atomic").unwrap_err(), "which a gateway cannot have"),
            (Duplicates::from_text("wait").unwrap_err(), "use reject, accept or wait:2s"),
            (Duplicates::from_text("wait:2").unwrap_err(), "is not a duration"),
            (Duration::from_text("0s").unwrap_err(), "would end everything"),
            (
                Tenant::from_text("header:Authorization").unwrap_err(),
                "a retry after that would be a new intent",
            ),
            (Tenant::from_text("header:cookie").unwrap_err(), "a retry after that would be a new intent"),
            (Tenant::from_text("X-Tenant-Id").unwrap_err(), "use header:X-Tenant-Id"),
            (Question::from_text("POST /whoami").unwrap_err(), "may only read"),
            (Question::from_text("GET /a/{id}").unwrap_err(), "its only placeholders"),
            (Uri::from_text("https://a").unwrap_err(), "plain HTTP"),
            (Uri::from_text("http://a/b").unwrap_err(), "it has a path"),
            (Uri::from_text("http://u@a").unwrap_err(), "no user"),
            (Uri::from_text("127.0.0.1:1").unwrap_err(), "write it like http://"),
            (Profile::from_text("x").unwrap_err(), "use classic, ietf, stripe"),
        ] {
            assert!(error.contains(says), "{error}");
        }
        assert!(Question::from_text("GET /p/{tenant}/{key}?x=1").is_ok());
        assert!(Uri::from_text("http://[::1]:3000/").is_ok());
    }
}
