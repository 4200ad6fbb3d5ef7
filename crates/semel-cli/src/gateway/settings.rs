//! The effective settings: the file, overridden by the environment, overridden by flags.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use http::header::HeaderName;
use http::uri::{PathAndQuery, Uri};
use semel::http::{BUFFERED_BYTES_MAX, Profile, headers};
use semel::recover::{ReconcileLimits, SweepLimits};
use semel::store::protect::Protection;

use super::config::{File, LimitsTable, ProtectTable, RecoverTable, TimeoutsTable};
use super::de::{FromText, Level, Question, Size, Tenant, Text};
use super::forwarded_headers::Trusted;
use super::idle_timeout::Phases;
use super::operation::Operation;
use super::smuggling::{HEADERS_MAX, HeadLimits};
use super::token_bucket::Rate;
use super::upstream::Target;
use crate::admin::require_loopback;
use crate::args::{Gateway, STORE_DEFAULT};
use crate::failure::Failed;
use crate::keys::KeySource;

/// Everything that can be set.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) listen: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) upstream: Uri,
    pub(super) keep_host: bool,
    pub(super) store: String,
    pub(super) cache: Option<String>,
    pub(super) profile: Profile,
    pub(super) key_header: HeaderName,
    pub(super) require_key: bool,
    pub(super) shadow: bool,
    pub(super) log: Level,
    pub(super) status_path: String,
    pub(super) status_secret: Option<StatusSecret>,
    pub(super) trusted_proxies: Vec<String>,
    pub(super) trusted: Trusted,
    pub(super) scope: ScopeOf,
    pub(super) authorize: Option<Question>,
    pub(super) authorize_headers: Vec<HeaderName>,
    pub(super) limits: Bounds,
    pub(super) timeouts: Timeouts,
    pub(super) recover: Recover,
    pub(super) protect: Protect,
    pub(super) operations: Vec<Operation>,
}

/// The secrets that sign the URLs of status resources.
#[derive(Clone)]
pub(super) struct StatusSecret {
    pub(super) source: KeySource,
    /// The first one signs; all are accepted.
    pub(super) secrets: Vec<String>,
    warning: Option<String>,
}

impl StatusSecret {
    fn new(source: &KeySource) -> Result<Self, String> {
        let (text, warning) = source.text("status_secret")?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let secrets: Vec<String> = lines.map(str::to_owned).collect();
        if secrets.is_empty() {
            return Err(format!("status_secret: {source} contains no secret; put one on a line of its own"));
        }
        Ok(Self { source: source.clone(), secrets, warning })
    }
}

impl fmt::Debug for StatusSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusSecret").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Where the tenant of a request comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ScopeOf {
    SingleTenant,
    Tenant(Tenant),
}

/// The limits of the gateway.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) connections_max: usize,
    pub(super) streams_max: u32,
    pub(super) head: HeadLimits,
    pub(super) buffered_bytes_max: usize,
    pub(super) upstream_requests_max: usize,
    pub(super) upstream_idle_max: usize,
    pub(super) intents: Option<Rate>,
    pub(super) attempts: Option<Rate>,
    pub(super) stored_bytes_max: Option<u64>,
}

/// A timeout for every phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    pub(super) phases: Phases,
    pub(super) body_idle: Duration,
    pub(super) linger: Duration,
    pub(super) connect: Duration,
    pub(super) response: Duration,
    pub(super) response_idle: Duration,
    pub(super) upstream_idle: Duration,
    pub(super) drain: Duration,
}

/// Background work: reconciling uncertain intents, and sweeping expired ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recover {
    pub(super) reconcile: ReconcileLimits,
    pub(super) sweep_every: Duration,
}

/// How stored outcomes are compressed and sealed.
#[derive(Clone, Debug)]
pub(super) struct Protect {
    pub(super) compress_above: Option<Size>,
    pub(super) keys: Option<KeySource>,
    pub(super) refuse_plain: bool,
    pub(super) protection: Protection,
    /// A warning about the keys.
    pub(super) warning: Option<String>,
}

impl Settings {
    /// Merges file, environment and flags. `store`, `cache` and `keys` come from a flag or the environment.
    pub(super) fn new(
        args: &Gateway,
        store: Option<&str>,
        cache: Option<&str>,
        keys: Option<&KeySource>,
    ) -> Result<Self, Failed> {
        let file = args.config.as_deref().map(File::read).transpose()?.unwrap_or_default();
        let usage = |why: String| Failed::usage(why);
        let admin = args.admin.or(file.admin).unwrap_or(SocketAddr::from(([127, 0, 0, 1], 9090)));
        let insecure = args.admin_insecure.or(file.admin_insecure).unwrap_or(false);
        require_loopback(admin, insecure)?;
        let upstream = of_text(args.upstream.as_deref())?.or(file.upstream.map(|Text(uri)| uri));
        let upstream = upstream.ok_or_else(|| {
            usage(
                "the service is not set; give --upstream http://127.0.0.1:3000, or upstream = in the file"
                    .into(),
            )
        })?;
        let authorize =
            of_text(args.authorize.as_deref())?.or(file.scope.authorize.map(|Text(question)| question));
        let scope = scope(args, file.scope.tenant, file.scope.single_tenant)?;
        if matches!(scope, ScopeOf::Tenant(Tenant::Auth(_))) && authorize.is_none() {
            return Err(usage(
                "a tenant from auth:… needs authorize = \"GET /whoami\", whose answer names it".into(),
            ));
        }
        if authorize.as_ref().is_some_and(|question: &Question| question.path.contains('{')) {
            return Err(usage(
                "authorize asks about the caller; remove {key} and {tenant} from its path".into(),
            ));
        }
        let trusted_proxies =
            file.trusted_proxies.unwrap_or_else(|| vec!["127.0.0.0/8".to_owned(), "::1".to_owned()]);
        let trusted = Trusted::parse(&trusted_proxies).map_err(usage)?;
        let status_path = file.status_path.unwrap_or_else(|| "/.semel/intents".to_owned());
        let is_path =
            status_path.starts_with('/') && !status_path.ends_with('/') && !status_path.contains('?');
        if !is_path || status_path.parse::<PathAndQuery>().is_err() {
            return Err(usage(format!(
                "status_path {status_path:?} is not a valid path; use one such as /.semel/intents"
            )));
        }
        let status_secret = file.status_secret.map(|Text(source)| StatusSecret::new(&source));
        let status_secret = status_secret.transpose().map_err(usage)?;
        let shadow = args.shadow.or(file.shadow).unwrap_or(false);
        // Shadow mode leaves no file behind unless a store is given.
        let default_store = if shadow { "memory:" } else { STORE_DEFAULT };
        let operations: Result<Vec<_>, _> = file.operation.iter().map(Operation::new).collect();
        let operations = operations.map_err(usage)?;
        if let ScopeOf::Tenant(_) = scope {
            let unbound = |operation: &&Operation| {
                operation.lookup.as_ref().is_some_and(|lookup| !lookup.names_tenant())
            };
            if let Some(operation) = operations.iter().find(unbound) {
                return Err(usage(format!(
                    "operation {:?}: lookup has no {{tenant}}, so it would find what another tenant did under the same \
                     key; put {{tenant}} into the path, the query or a value of lookup_headers, such as \
                     lookup_headers = {{ x-tenant-id = \"{{tenant}}\" }}",
                    operation.name
                )));
            }
        }
        Ok(Self {
            listen: args.listen.or(file.listen).unwrap_or(SocketAddr::from(([127, 0, 0, 1], 8080))),
            admin,
            upstream,
            keep_host: file.keep_host.unwrap_or(true),
            cache: cache.map(str::to_owned).or(file.cache),
            store: store.map(str::to_owned).or(file.store).unwrap_or_else(|| default_store.to_owned()),
            profile: of_text(args.profile.as_deref())?.or(file.profile.map(|Text(p)| p)).unwrap_or_default(),
            key_header: file.key_header.map_or(headers::IDEMPOTENCY_KEY, |Text(name)| name),
            require_key: args.require_key.or(file.require_key).unwrap_or(false),
            shadow,
            log: of_text(args.log.as_deref())?
                .or(file.log.map(|Text(l)| l))
                .unwrap_or(Level(tracing::Level::INFO)),
            status_path,
            status_secret,
            trusted_proxies,
            trusted,
            scope,
            authorize,
            authorize_headers: file.scope.authorize_headers.into_iter().map(|Text(name)| name).collect(),
            limits: Bounds::new(&file.limits).map_err(usage)?,
            timeouts: Timeouts::new(&file.timeouts),
            recover: Recover::new(&file.recover).map_err(usage)?,
            protect: Protect::new(&file.protect, keys).map_err(usage)?,
            operations,
        })
    }

    /// The headers of requests that the gateway itself reads.
    pub(super) fn read_headers(&self) -> Vec<HeaderName> {
        let mut names = vec![self.key_header.clone()];
        if let ScopeOf::Tenant(Tenant::Header(name)) = &self.scope {
            names.push(name.clone());
        }
        names.extend(self.authorize_headers.iter().cloned());
        names
    }

    /// Warnings about settings that are allowed but risky.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = self.protect.warning.iter().cloned().collect();
        match &self.status_secret {
            Some(secret) => warnings.extend(secret.warning.clone()),
            None if self.operations.iter().any(|operation| operation.duplicates.accept) => warnings.push(
                "status_secret is not set: only this process can answer the status URL of a 202, and only until it \
                 ends; other instances answer 404. Give all of them the same: status_secret = \"file:PATH\" or \
                 \"env:NAME\""
                    .to_owned(),
            ),
            None => {}
        }
        for operation in &self.operations {
            warnings.extend(operation.warnings(self.keep_host));
        }
        warnings
    }

    /// The upstream service. The URI was checked when it was read.
    pub(super) fn target(&self) -> Result<Target, Failed> {
        let authority = self.upstream.authority().cloned();
        let authority = authority
            .ok_or_else(|| Failed::usage("upstream has no host; write it like http://127.0.0.1:3000"))?;
        Ok(Target {
            port: authority.port_u16().unwrap_or(80),
            authority,
            connect: self.timeouts.connect,
            response: self.timeouts.response,
            response_idle: self.timeouts.response_idle,
            idle: self.timeouts.upstream_idle,
            requests_max: self.limits.upstream_requests_max,
            idle_max: self.limits.upstream_idle_max,
        })
    }
}

/// A tenant setting on the command line overrides the whole setting in the file.
fn scope(args: &Gateway, tenant: Option<Text<Tenant>>, single: Option<bool>) -> Result<ScopeOf, Failed> {
    let (tenant, single) = match (&args.tenant, args.single_tenant) {
        (None, None | Some(false)) => (tenant.map(|Text(tenant)| tenant), single == Some(true)),
        (tenant, single) => (of_text(tenant.as_deref())?, single == Some(true)),
    };
    match (tenant, single) {
        (Some(tenant), false) => Ok(ScopeOf::Tenant(tenant)),
        (None, true) => Ok(ScopeOf::SingleTenant),
        (Some(_), true) => Err(Failed::usage("single_tenant and tenant are both set; set only one of them")),
        (None, false) => Err(Failed::usage(
            "the tenant of requests is not set, and one tenant must not get another's answers; give --tenant \
             header:X-Tenant-Id (checked by a proxy in front), or --authorize 'GET /whoami' with --tenant \
             auth:X-User-Id, or --single-tenant if there is only one",
        )),
    }
}

fn of_text<T: FromText>(text: Option<&str>) -> Result<Option<T>, Failed> {
    text.map(T::from_text).transpose().map_err(Failed::usage)
}

impl Bounds {
    fn new(table: &LimitsTable) -> Result<Self, String> {
        let positive = |name: &str, value: Option<usize>, default: usize, max: usize| match value {
            Some(value) if !(1..=max).contains(&value) => {
                Err(format!("{name} = {value} is not in 1..={max}"))
            }
            value => Ok(value.unwrap_or(default)),
        };
        let streams = table.streams_max.map(|max| max as usize);
        Ok(Self {
            connections_max: positive("connections_max", table.connections_max, 10_000, 1 << 20)?,
            streams_max: positive("streams_max", streams, 100, 10_000)? as u32,
            head: HeadLimits {
                head_bytes_max: positive("head_bytes_max", table.head_bytes_max, 32 << 10, 1 << 20)?,
                headers_max: positive("headers_max", table.headers_max, 100, HEADERS_MAX)?,
            },
            buffered_bytes_max: positive(
                "buffered_bytes_max",
                table.buffered_bytes_max,
                BUFFERED_BYTES_MAX,
                usize::MAX,
            )?,
            upstream_requests_max: positive(
                "upstream_requests_max",
                table.upstream_requests_max,
                1_024,
                1 << 20,
            )?,
            upstream_idle_max: positive("upstream_idle_max", table.upstream_idle_max, 256, 1 << 20)?,
            intents: rate("new_intents", table.new_intents_per_s, table.new_intents_burst)?,
            attempts: rate("attempts", table.attempts_per_key_per_s, table.attempts_burst)?,
            stored_bytes_max: table.stored_bytes_max,
        })
    }
}

/// Without a burst setting, the burst is one second's worth.
fn rate(name: &str, per_s: Option<f64>, burst: Option<u32>) -> Result<Option<Rate>, String> {
    let Some(per_s) = per_s else {
        return match burst {
            Some(_) => Err(format!("{name}_burst has no effect without a rate; set the rate per second too")),
            None => Ok(None),
        };
    };
    if !(per_s > 0.0 && per_s <= 1e9) {
        return Err(format!("{name} per second = {per_s} is not a rate; give a number above 0"));
    }
    let burst = burst.unwrap_or(per_s.ceil().clamp(1.0, f64::from(u32::MAX)) as u32);
    if burst == 0 {
        return Err(format!("{name}_burst = 0 would let nothing through; use at least 1"));
    }
    Ok(Some(Rate { per_s, burst }))
}

impl Timeouts {
    fn new(table: &TimeoutsTable) -> Self {
        let or = |setting: &Option<Text<Duration>>, default_s: u64| {
            setting.as_ref().map_or(Duration::from_secs(default_s), |Text(duration)| *duration)
        };
        Self {
            phases: Phases {
                header_read: or(&table.header_read, 10),
                idle: or(&table.idle, 75),
                write_idle: or(&table.write_idle, 30),
            },
            body_idle: or(&table.body_idle, 30),
            linger: or(&table.linger, 10),
            connect: or(&table.connect, 5),
            response: or(&table.response, 60),
            response_idle: or(&table.response_idle, 60),
            // Shorter than common servers keep idle connections (5 s): a request on a closing connection would be in
            // doubt.
            upstream_idle: or(&table.upstream_idle, 4),
            drain: or(&table.drain, 25),
        }
    }
}

impl Recover {
    fn new(table: &RecoverTable) -> Result<Self, String> {
        let mut reconcile = ReconcileLimits::default();
        let or = |setting: &Option<Text<Duration>>, default: Duration| {
            setting.as_ref().map_or(default, |Text(duration)| *duration)
        };
        reconcile.every = or(&table.reconcile_every, reconcile.every);
        reconcile.pause_min = or(&table.pause_min, reconcile.pause_min);
        reconcile.pause_max = or(&table.pause_max, reconcile.pause_max).max(reconcile.pause_min);
        for (bound, name, setting) in [
            (&mut reconcile.run_lookups_max, "lookups_max", table.lookups_max),
            (&mut reconcile.lookups_at_once, "lookups_at_once", table.lookups_at_once),
        ] {
            match setting {
                Some(value) if !(1..=10_000).contains(&value) => {
                    return Err(format!("{name} = {value} is not in 1..=10000"));
                }
                Some(value) => *bound = value,
                None => {}
            }
        }
        Ok(Self { reconcile, sweep_every: or(&table.sweep_every, SweepLimits::default().every) })
    }
}

impl Protect {
    fn new(table: &ProtectTable, keys: Option<&KeySource>) -> Result<Self, String> {
        let keys = keys.cloned().or_else(|| table.keys.as_ref().map(|Text(source)| source.clone()));
        let compress_above = table.compress_above.as_ref().map(|Text(size)| *size);
        let refuse_plain = table.refuse_plain.unwrap_or(false);
        let (mut protection, mut warning) = (Protection::none(), None);
        if let Some(Size(bytes)) = compress_above {
            protection = protection.compress_above(bytes);
        }
        match &keys {
            Some(source) => {
                let loaded = source.load()?;
                protection = protection.seal(loaded.keys);
                warning = loaded.warning;
            }
            None if refuse_plain => {
                return Err("refuse_plain without keys would refuse every outcome; set keys too".into());
            }
            None => {}
        }
        if refuse_plain {
            protection = protection.refuse_plain();
        }
        Ok(Self { compress_above, keys, refuse_plain, protection, warning })
    }
}
