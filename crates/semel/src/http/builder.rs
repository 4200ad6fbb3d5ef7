//! From settings to a layer, or to what is wrong with them.

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

/// Most rules of one layer: they are looked through for each request.
pub const RULES_MAX: usize = 1_000;

/// Why there is no layer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// One tenant would get another's answers.
    #[error(
        "nobody says whose requests these are: give `scope` or `scope_header`, or say `single_tenant` where there is only one"
    )]
    NoScope,
    /// Whatever changes between two retries makes a retry a new intent.
    #[error(
        "the header {0} changes when a token is refreshed, and a retry after that would be a new intent; take the stable principal it stands for, with `scope`"
    )]
    UnstableScope(HeaderName),
    /// See [`Rule::on`].
    #[error("`{route}` is no route: {why}")]
    Route {
        /// As given.
        route: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Requests that change nothing are not guarded.
    #[error("{0} requests change nothing and pass through; a rule for them would do nothing")]
    SafeMethod(Method),
    /// The second would never count.
    #[error("there are two rules for `{route}`, or two that give their operations the same name `{name}`")]
    Twice {
        /// The second rule's route.
        route: String,
        /// Its operation's name.
        name: String,
    },
    /// See [`RULES_MAX`].
    #[error("{count} rules are more than {RULES_MAX}")]
    TooManyRules {
        /// How many there are.
        count: usize,
    },
    /// The operation's name is none.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// The policy cannot hold.
    #[error("operation `{operation}`: {error}")]
    Policy {
        /// Of which operation.
        operation: String,
        /// Why not.
        #[source]
        error: PolicyError,
    },
    /// A header that must never be given to another caller.
    #[error("the header {0} belongs to one exchange or one session and is never replayed")]
    ReplayHeader(HeaderName),
    /// More than a store takes.
    #[error("response_bytes_max is {bytes}; stores take at most {}", OUTCOME_BYTES_MAX - KEPT_HEADERS_BYTES_MAX)]
    ResponseBytesMax {
        /// As given.
        bytes: usize,
    },
    /// The handler claims in its own transaction, where the layer cannot do this.
    #[error(
        "operation `{operation}`: `{setting}` would do nothing with Effect::Atomic: {why}; leave it out, or choose another effect"
    )]
    Atomic {
        /// Of which operation.
        operation: String,
        /// The method of [`Rule`] that set it.
        setting: &'static str,
        /// What stands in the way.
        why: &'static str,
    },
    /// A body of that size could never be read.
    #[error(
        "buffered_bytes_max is {bytes}, less than the body_bytes_max of operation `{operation}`, {body_bytes_max}: such a body could never be read"
    )]
    BufferedBytesMax {
        /// As given.
        bytes: usize,
        /// Of which operation.
        operation: String,
        /// As given.
        body_bytes_max: usize,
    },
    /// A 202 has to say where to ask.
    #[error("operation `{operation}` answers 202, so clients need a place to ask: give `status_path`")]
    NoStatus {
        /// Of which operation.
        operation: String,
    },
    /// See [`Builder::status_secrets`].
    #[error("status_secrets: {why}")]
    StatusSecrets {
        /// What is wrong with them.
        why: String,
    },
    /// Not the beginning of a path.
    #[error("`{0}` is no place for the status resource; write it as `/intents`")]
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
    otherwise: Rule,
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
            otherwise: Rule::default_rule(),
            status_path: None,
            status_secrets: Vec::new(),
            buffered_bytes_max: BUFFERED_BYTES_MAX,
        }
    }

    /// Says whose a request is, from what earlier layers found out (an authenticated user in the extensions).
    /// A request for which this fails is refused with 400; why is logged, not told.
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

    /// There is one tenant only: all requests share one space of keys.
    pub fn single_tenant(self) -> Self {
        self.scope(|_| Ok::<_, ScopeError>(Scope::single_tenant()))
    }

    /// The header the key comes in, where it is not `Idempotency-Key`.
    pub fn header(mut self, name: HeaderName) -> Self {
        self.header = name;
        self
    }

    /// The dialect clients are used to.
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// What a problem's `type` begins with, such as `https://api.example.com/problems/`; the code follows.
    pub fn problem_types(mut self, types: &str) -> Self {
        self.types = types.to_owned();
        self
    }

    /// The methods that are guarded where no rule says more: POST, PATCH, PUT and DELETE unless changed here.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// Adds what holds for one operation. The first rule that matches counts.
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// What holds where no rule matches; see [`Rule::default_rule`].
    pub fn default_rule(mut self, rule: Rule) -> Self {
        self.otherwise = rule;
        self
    }

    /// Where [`status_service`](IdempotencyLayer::status_service) is mounted, as clients see it: a 202 points
    /// to `{path}/{intent}.{token}`.
    pub fn status_path(mut self, path: &str) -> Self {
        self.status_path = Some(path.to_owned());
        self
    }

    /// The secrets that the addresses of status resources are signed with, of at least 16 bytes each: the first one
    /// signs, and all of them are accepted, so that they can be changed. Give the same to every instance.
    ///
    /// Without one the layer draws a secret of its own. Then an address is good for the process that gave it, and until
    /// that ends; every other one answers 404, and a client sends its original request again.
    pub fn status_secrets(mut self, secrets: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        self.status_secrets = secrets.into_iter().map(|secret| secret.as_ref().to_vec()).collect();
        self
    }

    /// Holds at most this many bytes of request bodies at once, all requests together:
    /// [`BUFFERED_BYTES_MAX`](super::BUFFERED_BYTES_MAX) unless said here. Beyond that a request is answered with 503
    /// and `Retry-After`, before anything is claimed. `semel_http_buffered_bytes` says how many are held.
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
        for rule in self.rules.iter().chain([&self.otherwise]) {
            check(rule, self.status_path.is_some())?;
            let (bytes, body_bytes_max) = (self.buffered_bytes_max, rule.body_bytes_max);
            if bytes < body_bytes_max {
                return Err(BuildError::BufferedBytesMax { bytes, operation: named(rule), body_bytes_max });
            }
        }
        let accepts = self.rules.iter().chain([&self.otherwise]).any(|rule| rule.accept);
        let tokens = tokens(self.status_secrets, accepts)?;
        let operations = Operations::new(&self.guard, self.rules, self.otherwise, self.methods)?;
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
        let why = format!("{} secrets are more than {SECRETS_MAX}", secrets.len());
        return Err(BuildError::StatusSecrets { why });
    }
    if let Some(secret) = secrets.iter().find(|secret| secret.len() < SECRET_BYTES_MIN) {
        let why =
            format!("a secret of {} bytes is too short, give it at least {SECRET_BYTES_MIN}", secret.len());
        return Err(BuildError::StatusSecrets { why });
    }
    if !secrets.is_empty() {
        return Ok(Tokens::new(secrets));
    }
    if accepts {
        tracing::info!(
            "status_secrets are not set: what a 202 points to is answered by this process only, and until it ends"
        );
    }
    Ok(Tokens::random())
}

/// How a message names a rule.
fn named(rule: &Rule) -> String {
    rule.name.clone().or_else(|| rule.route.clone()).unwrap_or_else(|| "otherwise".to_owned())
}

/// What is set for an atomic operation although it cannot hold there.
fn without_effect(rule: &Rule) -> [(bool, &'static str, &'static str); 4] {
    let atomic = rule.policy.effect == Effect::Atomic;
    let unseen = "the intent is invisible to others until the handler commits, so a status resource has nothing to show";
    let by_function = matches!(rule.failures, Failures::By(_));
    [
        (atomic && rule.respond_async_after.is_some(), "respond_async_after", unseen),
        (atomic && rule.accept, "accept", unseen),
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
