//! One operation of the configuration, and its rule for the idempotency layer.

use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderName, HeaderValue};
use semel::http::{BODY_BYTES_MAX, KeyRule, On5xx, RESPONSE_BYTES_MAX, Rule};
use semel::{Effect, InFlight, KeyFormat, Preset, Retention, StoreDown};

use super::config::OperationTable;
use super::de::{Duplicates, FromText, Question, Text};
use super::forward::Forward;
use super::lookup::UpstreamLookup;

/// The settings of one operation.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) route: String,
    pub(super) name: String,
    pub(super) key: KeyRule,
    pub(super) key_bytes_min: usize,
    pub(super) key_format: KeyFormat,
    pub(super) retention: Retention,
    pub(super) lease: Duration,
    pub(super) duplicates: Duplicates,
    pub(super) effect: Effect,
    /// How long the service remembers a key.
    pub(super) safe_for: Option<Duration>,
    pub(super) on_5xx: On5xx,
    pub(super) lookup: Option<Lookup>,
    pub(super) store_down: StoreDown,
    pub(super) verify: bool,
    pub(super) body_bytes_max: usize,
    pub(super) response_bytes_max: usize,
    pub(super) replay_headers: Vec<HeaderName>,
}

/// How an uncertain intent is looked up.
#[derive(Clone, Debug)]
pub(super) struct Lookup {
    pub(super) question: Question,
    pub(super) settle: Duration,
    pub(super) status: Option<StatusCode>,
    /// The status that means "not applied". Without it, only `Idempotency-Effect: not-applied` does.
    pub(super) absent: Option<StatusCode>,
    /// The Host header of the lookup. Without it, upstream's.
    pub(super) host: Option<HeaderValue>,
    /// Their values may contain `{tenant}`.
    pub(super) headers: Vec<(HeaderName, String)>,
}

impl Lookup {
    /// Whether the lookup names the tenant.
    pub(super) fn names_tenant(&self) -> bool {
        let in_headers = || self.headers.iter().any(|(_, value)| value.contains(TENANT));
        self.question.path.contains(TENANT) || in_headers()
    }
}

/// The placeholder for the tenant in a lookup.
pub(super) const TENANT: &str = "{tenant}";

impl Operation {
    pub(super) fn new(table: &OperationTable) -> Result<Self, String> {
        let name = table.name.clone().unwrap_or_else(|| table.r#match.clone());
        let named = |why: String| format!("operation {name:?}: {why}");
        let preset = table.preset.as_ref().map(|Text(preset)| *preset);
        let retention = table.retention.as_ref().map(|Text(retention)| *retention);
        let on_5xx = if preset == Some(Preset::Payment) { On5xx::Hold } else { On5xx::default() };
        let reject = Duplicates { in_flight: InFlight::Reject, accept: false };
        let lookup = lookup(table).map_err(named)?;
        Ok(Self {
            route: table.r#match.clone(),
            key: or(&table.key, KeyRule::Required),
            key_bytes_min: table.key_bytes_min.unwrap_or(0),
            key_format: or(&table.key_format, KeyFormat::Any),
            retention: retention.or(preset.map(Preset::retention)).unwrap_or_default(),
            lease: or(&table.lease, Duration::from_secs(30)),
            duplicates: or(&table.in_flight, reject),
            effect: or(&table.effect, Effect::Opaque),
            safe_for: table.safe_for.as_ref().map(|Text(safe_for)| *safe_for),
            on_5xx: or(&table.on_5xx, on_5xx),
            lookup,
            store_down: or(&table.store_down, StoreDown::Closed),
            verify: table.verify.unwrap_or(preset.is_some_and(Preset::verify)),
            body_bytes_max: table.body_bytes_max.unwrap_or(BODY_BYTES_MAX),
            response_bytes_max: table.response_bytes_max.unwrap_or(RESPONSE_BYTES_MAX),
            replay_headers: table.replay_headers.iter().map(|Text(name)| name.clone()).collect(),
            name,
        })
    }

    /// Its name, effect and lookup delay, which decide the problem a client gets when upstream breaks off.
    pub(super) fn effect_and_settle(&self) -> (String, (Effect, Option<Duration>)) {
        let settle = self.lookup.as_ref().map(|lookup| lookup.settle);
        (self.name.clone(), (self.effect, settle))
    }

    /// Warnings about settings that are allowed but risky.
    pub(super) fn warnings(&self, keep_host: bool) -> Vec<String> {
        let (name, mut warnings) = (&self.name, Vec::new());
        if self.effect == Effect::Opaque && self.on_5xx == On5xx::Retry {
            warnings.push(format!(
                "operation {name:?} runs again after a 500, a 501 or a 503 with Retry-After (on_5xx = \"retry\"); if \
                 the service may have acted before such an answer, set on_5xx = \"hold\""
            ));
        }
        if self.effect == Effect::Keyed && self.safe_for.is_none() {
            warnings.push(format!(
                "operation {name:?} is keyed and has no safe_for: a request is sent again however late, although the \
                 service may have forgotten the key by then; set safe_for to how long it remembers keys"
            ));
        }
        let Some(lookup) = &self.lookup else { return warnings };
        if lookup.absent.is_none() {
            warnings.push(format!(
                "operation {name:?}: lookup_absent is not set, so a lookup that finds nothing leaves the intent \
                 uncertain, unless the service answers with Idempotency-Effect: not-applied"
            ));
        }
        if keep_host && lookup.host.is_none() {
            warnings.push(format!(
                "operation {name:?}: requests carry the client's Host header, but lookups carry upstream's; if the \
                 service has virtual hosts, set lookup_host"
            ));
        }
        warnings
    }

    /// The rule of the layer.
    pub(super) fn rule(&self, forward: &Forward, call_max: Duration) -> Rule {
        let mut rule = Rule::on(&self.route)
            .name(&self.name)
            .key(self.key)
            .key_bytes_min(self.key_bytes_min)
            .key_format(self.key_format)
            .retention(self.retention)
            .lease(self.lease)
            .in_flight(self.duplicates.in_flight)
            .effect(self.effect)
            .on_5xx(self.on_5xx)
            .store_down(self.store_down)
            .verify(self.verify)
            .body_bytes_max(self.body_bytes_max)
            .response_bytes_max(self.response_bytes_max);
        if self.duplicates.accept {
            rule = rule.respond_accepted();
        }
        if let Some(safe_for) = self.safe_for {
            rule = rule.timeout(call_max).safe_for(safe_for);
        }
        if let Some(lookup) = &self.lookup {
            let asks = UpstreamLookup::new(forward.upstream.clone(), lookup.clone(), self.response_bytes_max);
            rule = rule.lookup(asks, lookup.settle);
        }
        self.replay_headers.iter().fold(rule, |rule, name| rule.replay_header(name.clone()))
    }
}

fn or<T: Clone>(setting: &Option<Text<T>>, default: T) -> T {
    setting.as_ref().map_or(default, |Text(value)| value.clone())
}

fn lookup(table: &OperationTable) -> Result<Option<Lookup>, String> {
    let Some(Text(question)) = &table.lookup else {
        let more = table.lookup_settle.is_some()
            || table.lookup_status.is_some()
            || table.lookup_absent.is_some()
            || table.lookup_host.is_some()
            || !table.lookup_headers.is_empty();
        return if more {
            Err("lookup_… is set but lookup is not; set lookup too".into())
        } else {
            Ok(None)
        };
    };
    if !question.path.contains("{key}") {
        return Err(
            "lookup has no {key}, so it would find the same for every intent; put {key} into its path".into(),
        );
    }
    let status = table.lookup_status.map(|code| match StatusCode::from_u16(code) {
        Ok(status) if !status.is_informational() && code < 500 => Ok(status),
        _ => Err(format!("lookup_status = {code} is not the status of an answer; use 200 to 499")),
    });
    let absent = table.lookup_absent.map(|code| match StatusCode::from_u16(code) {
        Ok(status) if status.is_client_error() => Ok(status),
        _ => Err(format!("lookup_absent = {code} is not a status that says \"not found\"; 404 is usual")),
    });
    let host = table.lookup_host.as_ref().map(|host| {
        HeaderValue::from_str(host).map_err(|_| format!("lookup_host = {host:?} is not a valid Host header"))
    });
    let headers = table.lookup_headers.iter().map(|(name, value)| {
        let name = HeaderName::from_text(name)?;
        // Secrets belong in the environment: `env:NAME` reads them from there.
        let value = match value.strip_prefix("env:") {
            Some(variable) => std::env::var(variable)
                .map_err(|_| format!("lookup_headers: the environment variable {variable} is not set"))?,
            None => value.clone(),
        };
        HeaderValue::from_str(&value)
            .map_err(|_| format!("lookup_headers: the value of {name} is not a valid header value"))?;
        Ok((name, value))
    });
    Ok(Some(Lookup {
        question: question.clone(),
        settle: or(&table.lookup_settle, Duration::from_secs(10)),
        status: status.transpose()?,
        absent: absent.transpose()?,
        host: host.transpose()?,
        headers: headers.collect::<Result<_, String>>()?,
    }))
}
