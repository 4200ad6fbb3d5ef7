//! `--check`: the effective settings, as a configuration file that would set them.

use std::fmt::Write;
use std::time::Duration;

use semel::http::{KeyRule, On5xx};
use semel::{InFlight, KeyFormat, Retention, StoreDown};
use serde_json::{Value, json};

use super::de::Duplicates;
use super::operation::Operation;
use super::settings::{ScopeOf, Settings};
use super::token_bucket::Rate;
use crate::url::without_password;

/// All settings as a document. Secrets are left out: the values of `lookup_headers`, a store's password.
pub(super) fn document(settings: &Settings) -> Value {
    let (limits, timeouts, recover) = (&settings.limits, &settings.timeouts, &settings.recover);
    let mut scope = match &settings.scope {
        ScopeOf::SingleTenant => json!({ "single_tenant": true }),
        ScopeOf::Tenant(tenant) => json!({ "tenant": tenant.to_string() }),
    };
    if let Some(question) = &settings.authorize {
        let headers: Vec<&str> = settings.authorize_headers.iter().map(|name| name.as_str()).collect();
        scope["authorize"] = question.to_string().into();
        scope["authorize_headers"] = headers.into();
    }
    let mut bounds = json!({
        "connections_max": limits.connections_max,
        "streams_max": limits.streams_max,
        "head_bytes_max": limits.head.head_bytes_max,
        "headers_max": limits.head.headers_max,
        "buffered_bytes_max": limits.buffered_bytes_max,
        "upstream_requests_max": limits.upstream_requests_max,
        "upstream_idle_max": limits.upstream_idle_max,
    });
    for (rate, per_s, burst) in [
        (limits.intents, "new_intents_per_s", "new_intents_burst"),
        (limits.attempts, "attempts_per_key_per_s", "attempts_burst"),
    ] {
        if let Some(Rate { per_s: value, burst: most }) = rate {
            bounds[per_s] = value.into();
            bounds[burst] = most.into();
        }
    }
    if let Some(bytes) = limits.stored_bytes_max {
        bounds["stored_bytes_max"] = bytes.into();
    }
    let mut protect = json!({ "refuse_plain": settings.protect.refuse_plain });
    if let Some(size) = settings.protect.compress_above {
        protect["compress_above"] = size.to_string().into();
    }
    if let Some(keys) = &settings.protect.keys {
        protect["keys"] = keys.to_string().into();
    }
    let operations: Vec<Value> = settings.operations.iter().map(operation).collect();
    let mut document = json!({
        "listen": settings.listen.to_string(),
        "admin": settings.admin.to_string(),
        "upstream": format!("http://{}", settings.upstream.authority().map_or("", |authority| authority.as_str())),
        "keep_host": settings.keep_host,
        "store": without_password(&settings.store),
        "profile": settings.profile.as_str(),
        "key_header": settings.key_header.as_str(),
        "require_key": settings.require_key,
        "shadow": settings.shadow,
        "log": settings.log.0.as_str().to_ascii_lowercase(),
        "status_path": settings.status_path,
        "trusted_proxies": settings.trusted_proxies,
        "scope": scope,
        "limits": bounds,
        "timeouts": {
            "header_read": exact(timeouts.phases.header_read),
            "idle": exact(timeouts.phases.idle),
            "write_idle": exact(timeouts.phases.write_idle),
            "body_idle": exact(timeouts.body_idle),
            "linger": exact(timeouts.linger),
            "connect": exact(timeouts.connect),
            "response": exact(timeouts.response),
            "response_idle": exact(timeouts.response_idle),
            "upstream_idle": exact(timeouts.upstream_idle),
            "drain": exact(timeouts.drain),
        },
        "recover": {
            "reconcile_every": exact(recover.reconcile.every),
            "lookups_max": recover.reconcile.run_lookups_max,
            "lookups_at_once": recover.reconcile.lookups_at_once,
            "pause_min": exact(recover.reconcile.pause_min),
            "pause_max": exact(recover.reconcile.pause_max),
            "sweep_every": exact(recover.sweep_every),
        },
        "protect": protect,
        "operation": operations,
    });
    if let Some(secret) = &settings.status_secret {
        document["status_secret"] = secret.source.to_string().into();
    }
    if let Some(cache) = &settings.cache {
        document["cache"] = without_password(cache).into();
    }
    document
}

fn operation(operation: &Operation) -> Value {
    let headers: Vec<&str> = operation.replay_headers.iter().map(|name| name.as_str()).collect();
    let mut document = json!({
        "match": operation.route,
        "name": operation.name,
        "key": match operation.key {
            KeyRule::Required => "required",
            KeyRule::Optional => "optional",
            KeyRule::Ignored => "ignored",
        },
        "key_bytes_min": operation.key_bytes_min,
        "key_format": match operation.key_format {
            KeyFormat::Any => "any",
            KeyFormat::TimeOrdered { .. } => "time_ordered",
        },
        "retention": match operation.retention {
            Retention::Ms(ms) => exact(Duration::from_millis(ms)),
            Retention::Forever => "forever".to_owned(),
        },
        "lease": exact(operation.lease),
        "in_flight": match operation.duplicates {
            Duplicates { accept: true, .. } => "accept".to_owned(),
            Duplicates { in_flight: InFlight::Wait(wait), .. } => format!("wait:{}", exact(wait)),
            Duplicates { in_flight: InFlight::Reject, .. } => "reject".to_owned(),
        },
        "effect": operation.effect.as_str(),
        "on_5xx": match operation.on_5xx {
            On5xx::Retry => "retry",
            On5xx::Hold => "hold",
            On5xx::Replay => "replay",
        },
        "store_down": match operation.store_down {
            StoreDown::Closed => "closed",
            StoreDown::Open => "open",
        },
        "verify": operation.verify,
        "body_bytes_max": operation.body_bytes_max,
        "response_bytes_max": operation.response_bytes_max,
        "replay_headers": headers,
    });
    if let Some(safe_for) = operation.safe_for {
        document["safe_for"] = exact(safe_for).into();
    }
    if let Some(lookup) = &operation.lookup {
        document["lookup"] = lookup.question.to_string().into();
        document["lookup_settle"] = exact(lookup.settle).into();
        if let Some(status) = lookup.status {
            document["lookup_status"] = status.as_u16().into();
        }
        if let Some(status) = lookup.absent {
            document["lookup_absent"] = status.as_u16().into();
        }
        if let Some(host) = lookup.host.as_ref().and_then(|host| host.to_str().ok()) {
            document["lookup_host"] = host.into();
        }
        let hidden: serde_json::Map<String, Value> =
            lookup.headers.iter().map(|(name, _)| (name.to_string(), "…".into())).collect();
        if !hidden.is_empty() {
            document["lookup_headers"] = hidden.into();
        }
    }
    document
}

/// The document as TOML: plain settings first, then the tables.
pub(super) fn toml(document: &Value) -> String {
    let mut out = String::new();
    let Value::Object(settings) = document else { return out };
    for (name, value) in settings.iter().filter(|(_, value)| !is_table(value)) {
        let _ = writeln!(out, "{name} = {}", inline(value));
    }
    for (name, value) in settings.iter().filter(|(_, value)| is_table(value)) {
        let (tables, heading) = match value {
            Value::Array(tables) => (tables.iter().collect(), format!("[[{name}]]")),
            table => (vec![table], format!("[{name}]")),
        };
        for table in tables {
            let _ = writeln!(out, "\n{heading}");
            for (name, value) in table.as_object().into_iter().flatten() {
                let _ = writeln!(out, "{name} = {}", inline(value));
            }
        }
    }
    out
}

fn is_table(value: &Value) -> bool {
    match value {
        Value::Object(_) => true,
        Value::Array(values) => values.iter().any(Value::is_object),
        _ => false,
    }
}

fn inline(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let pairs: Vec<String> =
                map.iter().map(|(name, value)| format!("{name:?} = {}", inline(value))).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        Value::Array(values) => {
            format!("[{}]", values.iter().map(inline).collect::<Vec<_>>().join(", "))
        }
        // Strings, numbers and booleans are the same in JSON and TOML.
        value => value.to_string(),
    }
}

/// A duration in the largest unit that loses nothing.
fn exact(duration: Duration) -> String {
    let ms = duration.as_millis();
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    let unit = units.iter().find(|(_, unit_ms)| ms > 0 && ms.is_multiple_of(*unit_ms));
    unit.map_or_else(|| format!("{ms}ms"), |(unit, unit_ms)| format!("{}{unit}", ms / unit_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_lose_nothing() {
        for (ms, text) in [(250, "250ms"), (1_000, "1s"), (90_000, "90s"), (604_800_000, "7d"), (0, "0ms")] {
            assert_eq!(exact(Duration::from_millis(ms)), text);
        }
    }
}
