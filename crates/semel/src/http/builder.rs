//! Builds a layer from its settings, or says what is wrong with them.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use http::Method;
use http::header::HeaderName;
use http::request::Parts;

use super::budget::{BUFFERED_BYTES_MAX, Budget};
use super::failure::Failures;
use super::headers::{IDEMPOTENCY_KEY, KEPT_HEADERS_BYTES_MAX, is_never_kept};
use super::key::changes_between_retries;
use super::layer::IdempotencyLayer;
use super::operations::Operations;
use super::problem::TYPES;
use super::profile::Profile;
use super::rule::Rule;
use super::status_token::{SECRET_BYTES_MIN, SECRETS_MAX, Tokens};
use crate::guard::{Guard, PolicyError};
use crate::intent::identity::OperationError;
use crate::intent::outcome::OUTCOME_BYTES_MAX;
use crate::intent::policy::Effect;
use crate::intent::scope::{Scope, ScopeError};
use crate::store::Store;

type BoxError = Box<dyn Error + Send + Sync>;
pub(super) type ScopeOf = Arc<dyn Fn(&Parts) -> Result<Scope, BoxError> + Send + Sync>;

/// Most rules of one layer: each request searches all of them.
pub const RULES_MAX: usize = 1_000;

/// Why there is no layer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Without a scope one tenant would get another's answers.
    #[error(
        "the layer has no tenant scope: set `scope` or `scope_header`, or `single_tenant` if there is only one tenant"
    )]
    NoScope,
    /// A value that changes between two retries would make the retry a new intent.
    #[error(
        "the header {0} changes when a token is refreshed, and a retry after that would be a new intent; use the \
         stable principal behind it, with `scope`"
    )]
    UnstableScope(HeaderName),
    /// See [`Rule::on`].
    #[error("`{route}` is not a route: {why}")]
    Route {
        /// As given.
        route: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Requests that change nothing are not guarded.
    #[error("{0} requests change nothing and pass through unguarded; remove the rule or method")]
    SafeMethod(Method),
    /// The second rule would never match.
    #[error("there are two rules for `{route}`, or two rules with the operation name `{name}`")]
    Twice {
        /// The second rule's route.
        route: String,
        /// Its operation's name.
        name: String,
    },
    /// See [`RULES_MAX`].
    #[error("there are {count} rules; at most {RULES_MAX} are allowed")]
    TooManyRules {
        /// How many there are.
        count: usize,
    },
    /// The operation's name is invalid.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// The policy is invalid.
    #[error("operation `{operation}`: {error}")]
    Policy {
        /// The operation.
        operation: String,
        /// Why.
        #[source]
        error: PolicyError,
    },
    /// A header that must never be sent to another caller.
    #[error("the header {0} belongs to one exchange or one session and is never replayed")]
    ReplayHeader(HeaderName),
    /// More than a store accepts.
    #[error("response_bytes_max is {bytes}; at most {} are allowed", OUTCOME_BYTES_MAX - KEPT_HEADERS_BYTES_MAX)]
    ResponseBytesMax {
        /// As given.
        bytes: usize,
    },
    /// The handler claims in its own transaction, where this setting does nothing.
    #[error(
        "operation `{operation}`: `{setting}` does nothing with Effect::Atomic: {why}; remove it, or choose another \
         effect"
    )]
    Atomic {
        /// The operation.
        operation: String,
        /// The method of [`Rule`] that set it.
        setting: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// A body of that size could never be read.
    #[error(
        "buffered_bytes_max is {bytes}, less than the body_bytes_max of operation `{operation}`, {body_bytes_max}: \
         such a body could never be read"
    )]
    BufferedBytesMax {
        /// As given.
        bytes: usize,
        /// The operation.
        operation: String,
        /// As given.
        body_bytes_max: usize,
    },
    /// A 202 needs the URL of a status resource.
    #[error("operation `{operation}` answers 202, so clients need a status resource: set `status_path`")]
    NoStatus {
        /// The operation.
        operation: String,
    },
    /// See [`Builder::status_secrets`].
    #[error("status_secrets: {why}")]
    StatusSecrets {
        /// What is wrong with them.
        why: String,
    },
    /// Not a path prefix.
    #[error("`{0}` is not a valid status_path; write it as `/intents`")]
    StatusAt(String),
}

/// Collects the settings of an [`IdempotencyLayer`]; the order of the calls does not matter.
#[must_use]
pub struct Builder<S> {
    guard: Guard<S>,
    scope: Option<ScopeOf>,
    unstable_scope: Option<HeaderName>,
    header: HeaderName,
    profile: Profile,
    types: String,
    methods: Vec<Method>,
    rules: Vec<Rule>,
    default_rule: Rule,
    status_path: Option<String>,
    status_secrets: Vec<Vec<u8>>,
    buffered_bytes_max: usize,
}

/// What a layer, its services and its status resource share.
pub(super) struct Shared<S> {
    pub(super) guard: Guard<S>,
    pub(super) scope: ScopeOf,
    pub(super) header: HeaderName,
    pub(super) profile: Profile,
    pub(super) types: String,
    pub(super) operations: Operations<S>,
    pub(super) status_path: Option<String>,
    pub(super) tokens: Tokens,
    pub(super) budget: Arc<Budget>,
}

impl<S: Store> Builder<S> {
    pub(super) fn new(guard: Guard<S>) -> Self {
        Self {
            guard,
            scope: None,
            unstable_scope: None,
            header: IDEMPOTENCY_KEY,
            profile: Profile::default(),
            types: TYPES.to_owned(),
            methods: vec![Method::POST, Method::PATCH, Method::PUT, Method::DELETE],
            rules: Vec::new(),
            default_rule: Rule::default_rule(),
            status_path: None,
            status_secrets: Vec::new(),
            buffered_bytes_max: BUFFERED_BYTES_MAX,
        }
    }

    /// Sets how the scope of a request is determined, from what earlier layers found (an authenticated user in the
    /// extensions). If this fails, the request is refused with 400; the reason is logged, not sent to the client.
    pub fn scope<E: Into<BoxError>>(
        mut self,
        of: impl Fn(&Parts) -> Result<Scope, E> + Send + Sync + 'static,
    ) -> Self {
        self.scope = Some(Arc::new(move |parts| of(parts).map_err(Into::into)));
        self.unstable_scope = None;
        self
    }

    /// Takes the tenant from a header that something in front of the service has checked. A request without it
    /// is refused. `Authorization` and `Cookie` are refused here: their value changes between two retries.
    pub fn scope_header(mut self, name: HeaderName) -> Self {
        self.unstable_scope = changes_between_retries(&name).then(|| name.clone());
        self.scope = Some(Arc::new(move |parts| tenant(parts, &name)));
        self
    }

    /// There is only one tenant: all requests share one space of keys.
    pub fn single_tenant(self) -> Self {
        self.scope(|_| Ok::<_, ScopeError>(Scope::single_tenant()))
    }

    /// Sets the header of the key, if it is not `Idempotency-Key`.
    pub fn header(mut self, name: HeaderName) -> Self {
        self.header = name;
        self
    }

    /// Sets the dialect that clients expect.
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// Sets the prefix of a problem's `type`, such as `https://api.example.com/problems/`; the code follows.
    pub fn problem_types(mut self, types: &str) -> Self {
        self.types = types.to_owned();
        self
    }

    /// Sets the methods that are guarded where no rule matches: POST, PATCH, PUT and DELETE by default.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// Adds the rule of one operation. The first rule that matches a request applies.
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Sets the rule for requests that no other rule matches; see [`Rule::default_rule`].
    pub fn default_rule(mut self, rule: Rule) -> Self {
        self.default_rule = rule;
        self
    }

    /// Sets where [`status_service`](IdempotencyLayer::status_service) is mounted, as clients see it: a 202 points
    /// to `{path}/{intent}.{token}`.
    pub fn status_path(mut self, path: &str) -> Self {
        self.status_path = Some(path.to_owned());
        self
    }

    /// Sets the secrets that sign the URLs of status resources, of at least 16 bytes each: the first one signs, and all
    /// of them are accepted, so that they can be rotated. Give the same to every instance.
    ///
    /// Without one the layer makes a random secret. Then a URL is valid only in the process that gave it, until that
    /// ends; every other process answers 404, and a client sends its original request again.
    pub fn status_secrets(mut self, secrets: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        self.status_secrets = secrets.into_iter().map(|secret| secret.as_ref().to_vec()).collect();
        self
    }

    /// Buffers at most this many bytes of request bodies at once, all requests together:
    /// [`BUFFERED_BYTES_MAX`](super::BUFFERED_BYTES_MAX) by default. Beyond that a request is answered with 503 and
    /// `Retry-After`, before anything is claimed. The metric `semel_http_buffered_bytes` has the current number.
    pub fn buffered_bytes_max(mut self, bytes: usize) -> Self {
        self.buffered_bytes_max = bytes;
        self
    }

    /// The layer, or what is wrong with the settings.
    pub fn build(self) -> Result<IdempotencyLayer<S>, BuildError> {
        if let Some(name) = self.unstable_scope {
            return Err(BuildError::UnstableScope(name));
        }
        let scope = self.scope.ok_or(BuildError::NoScope)?;
        if let Some(path) = &self.status_path
            && (!path.starts_with('/')
                || path.ends_with('/')
                || path.parse::<http::uri::PathAndQuery>().is_err())
        {
            return Err(BuildError::StatusAt(path.clone()));
        }
        for rule in self.rules.iter().chain([&self.default_rule]) {
            check(rule, self.status_path.is_some())?;
            let (bytes, body_bytes_max) = (self.buffered_bytes_max, rule.body_bytes_max);
            if bytes < body_bytes_max {
                return Err(BuildError::BufferedBytesMax { bytes, operation: named(rule), body_bytes_max });
            }
        }
        let accepts = self.rules.iter().chain([&self.default_rule]).any(|rule| rule.accept);
        let tokens = tokens(self.status_secrets, accepts)?;
        let operations = Operations::new(&self.guard, self.rules, self.default_rule, self.methods)?;
        let (guard, header, profile) = (self.guard, self.header, self.profile);
        let (types, status_path) = (self.types, self.status_path);
        let budget = Budget::new(self.buffered_bytes_max, guard.metrics().buffered());
        let shared = Shared { guard, scope, header, profile, types, operations, status_path, tokens, budget };
        Ok(IdempotencyLayer::new(shared))
    }
}

fn check(rule: &Rule, has_status: bool) -> Result<(), BuildError> {
    let named = || named(rule);
    if let Some(name) = rule.replay_headers.iter().find(|name| is_never_kept(name)) {
        return Err(BuildError::ReplayHeader(name.clone()));
    }
    if let Some((_, setting, why)) = without_effect(rule).into_iter().find(|(is_set, ..)| *is_set) {
        return Err(BuildError::Atomic { operation: named(), setting, why });
    }
    let bytes = rule.response_bytes_max;
    if bytes > OUTCOME_BYTES_MAX - KEPT_HEADERS_BYTES_MAX {
        return Err(BuildError::ResponseBytesMax { bytes });
    }
    if rule.accept && !has_status {
        return Err(BuildError::NoStatus { operation: named() });
    }
    Ok(())
}

fn tokens(secrets: Vec<Vec<u8>>, accepts: bool) -> Result<Tokens, BuildError> {
    if secrets.len() > SECRETS_MAX {
        let why = format!("there are {} secrets; at most {SECRETS_MAX} are allowed", secrets.len());
        return Err(BuildError::StatusSecrets { why });
    }
    if let Some(secret) = secrets.iter().find(|secret| secret.len() < SECRET_BYTES_MIN) {
        let why =
            format!("a secret of {} bytes is too short; use at least {SECRET_BYTES_MIN} bytes", secret.len());
        return Err(BuildError::StatusSecrets { why });
    }
    if !secrets.is_empty() {
        return Ok(Tokens::new(secrets));
    }
    if accepts {
        tracing::info!(
            "status_secrets are not set: status URLs work only in this process, until it ends; set them to share the \
             URLs between instances"
        );
    }
    Ok(Tokens::random())
}

/// How a message names a rule.
fn named(rule: &Rule) -> String {
    rule.name.clone().or_else(|| rule.route.clone()).unwrap_or_else(|| "default_rule".to_owned())
}

/// The settings that do nothing for an atomic operation, and whether they are set.
fn without_effect(rule: &Rule) -> [(bool, &'static str, &'static str); 4] {
    let atomic = rule.policy.effect == Effect::Atomic;
    let unseen = "the intent is invisible to others until the handler commits, so a status resource has nothing to \
                  show";
    let by_function = matches!(rule.failures, Failures::By(_));
    [
        (atomic && rule.respond_async_after.is_some(), "respond_async_after", unseen),
        (atomic && rule.accept, "respond_accepted", unseen),
        (atomic && rule.lookup.is_some(), "lookup", "what was committed happened, and nothing else did"),
        (atomic && by_function, "failures", "what the handler commits is the outcome, whatever its status"),
    ]
}

fn tenant(parts: &Parts, name: &HeaderName) -> Result<Scope, BoxError> {
    let mut lines = parts.headers.get_all(name).iter();
    let (Some(value), None) = (lines.next(), lines.next()) else {
        return Err(format!("the header {name} is missing or was sent more than once").into());
    };
    Ok(Scope::tenant(value.to_str()?)?)
}

/// Requests that change nothing.
pub(super) fn is_safe(method: &Method) -> bool {
    method.is_safe() || *method == Method::CONNECT
}

impl<S> fmt::Debug for Builder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("header", &self.header)
            .field("profile", &self.profile)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
