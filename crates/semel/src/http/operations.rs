//! Which operation a request belongs to, and how that operation is guarded.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use http::Method;
use sha2::{Digest, Sha256};

use super::builder::{BuildError, RULES_MAX, is_safe};
use super::route::Route;
use super::rule::{KeyRule, Rule};
use crate::guard::{Guard, Guarded, Lookup};
use crate::intent::identity::Operation;
use crate::intent::key::hex;
use crate::intent::policy::Effect;
use crate::store::{Record, Store};

/// Bound of the cache of operations without a rule. More than a router has; one beyond it is prepared for each
/// request, which costs a little and changes nothing.
const BY_TEMPLATE_MAX: usize = 1_000;

/// One operation, ready to guard requests.
pub(super) struct Prepared<S> {
    pub(super) rule: Rule,
    pub(super) guarded: Guarded<S>,
    /// The layer only reads; the handler claims and finishes in its own transaction.
    pub(super) atomic: bool,
}

pub(super) struct Found<S> {
    pub(super) prepared: Arc<Prepared<S>>,
    pub(super) key_required: bool,
}

pub(super) struct Operations<S> {
    declared: Vec<(Route, Arc<Prepared<S>>)>,
    guard: Guard<S>,
    default_rule: Rule,
    /// By method: requests without a rule and without a template.
    by_method: Vec<(Method, Arc<Prepared<S>>)>,
    /// By method and template: routes without a rule.
    by_template: RwLock<HashMap<String, Arc<Prepared<S>>>>,
}

const NO_TEMPLATE: &str = "*";

impl<S: Store> Operations<S> {
    pub(super) fn new(
        guard: &Guard<S>,
        rules: Vec<Rule>,
        default_rule: Rule,
        methods: Vec<Method>,
    ) -> Result<Self, BuildError> {
        if rules.len() > RULES_MAX {
            return Err(BuildError::TooManyRules { count: rules.len() });
        }
        let (mut declared, mut names) = (Vec::new(), HashSet::new());
        for rule in rules {
            let text = rule.route.clone().unwrap_or_default();
            let route = Route::parse(&text).map_err(|why| BuildError::Route { route: text.clone(), why })?;
            if is_safe(&route.method) {
                return Err(BuildError::SafeMethod(route.method));
            }
            let name = rule.name.clone().unwrap_or_else(|| operation_name(&route.method, &route.template));
            // Two rules under one name would guard one operation in two ways, depending on the route.
            if !names.insert(name.clone()) || declared.iter().any(|(other, _)| *other == route) {
                return Err(BuildError::Twice { route: text, name });
            }
            declared.push((route, Arc::new(prepare(guard, &name, rule)?)));
        }
        let mut by_method = Vec::new();
        for method in methods {
            if is_safe(&method) {
                return Err(BuildError::SafeMethod(method));
            }
            let name = default_rule.name.clone().unwrap_or_else(|| operation_name(&method, NO_TEMPLATE));
            by_method.push((method, Arc::new(prepare(guard, &name, default_rule.clone())?)));
        }
        Ok(Self { declared, guard: guard.clone(), default_rule, by_method, by_template: RwLock::default() })
    }

    /// All operations that are known beforehand, each once. Atomic ones are left out: they are never uncertain.
    pub(super) fn known(&self) -> impl Iterator<Item = &Guarded<S>> {
        let declared = self.declared.iter().map(|(_, prepared)| prepared);
        let mut names = HashSet::new();
        declared
            .chain(self.by_method.iter().map(|(_, prepared)| prepared))
            .filter(|prepared| !prepared.atomic)
            .map(|prepared| &prepared.guarded)
            .filter(move |guarded| names.insert(guarded.name().as_str()))
    }

    /// The operation of that name; without a rule of its own, it has the default rule.
    pub(super) fn named(&self, operation: &Operation) -> Arc<Prepared<S>> {
        let declared = self.declared.iter().map(|(_, prepared)| prepared);
        let mut known = declared.chain(self.by_method.iter().map(|(_, prepared)| prepared));
        if let Some(prepared) = known.find(|prepared| prepared.guarded.name() == operation) {
            return Arc::clone(prepared);
        }
        match prepare(&self.guard, operation.as_str(), self.default_rule.clone()) {
            Ok(prepared) => Arc::new(prepared),
            // Unreachable: the rule was checked when the layer was built, and the name is valid.
            Err(_) => {
                let guarded = Guarded::new(self.guard.clone(), operation.clone());
                Arc::new(Prepared { rule: self.default_rule.clone(), guarded, atomic: false })
            }
        }
    }

    /// The operation of a request; `None` when it is not guarded.
    pub(super) fn find(&self, method: &Method, template: Option<&str>, path: &str) -> Option<Found<S>> {
        if is_safe(method) {
            return None;
        }
        let declared = self.declared.iter().find(|(route, _)| route.matches(method, template, path));
        if let Some((_, prepared)) = declared {
            let key_required = prepared.rule.key == KeyRule::Required;
            return Some(Found { prepared: Arc::clone(prepared), key_required });
        }
        let (_, of_method) = self.by_method.iter().find(|(guarded, _)| guarded == method)?;
        // Requests without a template are one operation per method: if every path were one, clients could fill
        // metrics and memory with names. The path is in the fingerprint anyway.
        let prepared = match template {
            Some(template) if self.default_rule.name.is_none() => {
                self.of_template(method, template, of_method)
            }
            _ => Arc::clone(of_method),
        };
        let posted = *method == Method::POST || *method == Method::PATCH;
        let key_required = prepared.rule.key == KeyRule::Required && posted;
        Some(Found { prepared, key_required })
    }

    fn of_template(&self, method: &Method, template: &str, of_method: &Arc<Prepared<S>>) -> Arc<Prepared<S>> {
        let name = operation_name(method, template);
        let cache = self.by_template.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(prepared) = cache.get(&name) {
            return Arc::clone(prepared);
        }
        drop(cache);
        let prepared = match prepare(&self.guard, &name, self.default_rule.clone()) {
            Ok(prepared) => Arc::new(prepared),
            // Unreachable: the rule was checked when the layer was built, and `operation_name` gives valid names only.
            Err(_) => return Arc::clone(of_method),
        };
        let mut cache = self.by_template.write().unwrap_or_else(PoisonError::into_inner);
        if cache.len() < BY_TEMPLATE_MAX {
            cache.insert(name, Arc::clone(&prepared));
        }
        prepared
    }
}

/// `METHOD template`, or a digest of the template if that is not a valid name.
fn operation_name(method: &Method, template: &str) -> String {
    let name = format!("{method} {template}");
    if Operation::new(&name).is_ok() {
        return name;
    }
    let method = if method.as_str().len() > 20 { "OTHER" } else { method.as_str() };
    format!("{method} #{}", hex(&Sha256::digest(name)[..16]))
}

fn prepare<S: Store>(guard: &Guard<S>, name: &str, mut rule: Rule) -> Result<Prepared<S>, BuildError> {
    let atomic = rule.policy.effect == Effect::Atomic;
    if atomic {
        // The guard refuses atomic effects; the layer claims nothing here, so any other effect will do.
        rule.policy.effect = Effect::Keyed;
    }
    let policy_error = |error| BuildError::Policy { operation: name.to_owned(), error };
    let mut guarded = guard.operation(name)?.attached().policy(rule.policy).map_err(policy_error)?;
    if let Some(lookup) = &rule.lookup {
        let lookup = Arc::clone(lookup);
        guarded = guarded.lookup(Shared(lookup), rule.policy.settle);
    }
    guarded = guarded.rebuilt_by(rule.rebuild.clone());
    if !atomic {
        guarded.say_endless_key();
    }
    Ok(Prepared { rule, guarded, atomic })
}

/// One lookup for the operations of many routes.
struct Shared(Arc<dyn Lookup>);

impl Lookup for Shared {
    fn look_up(
        &self,
        record: Record,
    ) -> std::pin::Pin<Box<dyn Future<Output = crate::guard::Found> + Send + '_>> {
        self.0.look_up(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_whatever_the_template() {
        let long = format!("/{}", "x".repeat(300));
        let strange = Method::from_bytes(&[b'X'; 300]).unwrap();
        assert_eq!(operation_name(&Method::POST, "/payments/{id}"), "POST /payments/{id}");
        for (method, template) in
            [(Method::POST, long.as_str()), (Method::POST, "/zahlungen/ü"), (strange, "/a")]
        {
            assert!(Operation::new(&operation_name(&method, template)).is_ok(), "{method} {template}");
        }
        assert_ne!(operation_name(&Method::POST, "/ä"), operation_name(&Method::POST, "/ö"));
    }
}
