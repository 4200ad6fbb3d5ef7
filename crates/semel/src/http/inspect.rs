//! What the layer will do with a request, from its head alone.

use http::request::Parts;

use super::classify::{Named, Screened, screen};
use super::layer::IdempotencyLayer;
use crate::intent::identity::Intent;
use crate::store::Store;

/// The result of [`IdempotencyLayer::inspect`].
#[derive(Clone, Debug)]
pub enum Inspection {
    /// It is not guarded.
    Passes,
    /// Its key is missing or invalid; the layer will answer what is wrong.
    Refused,
    /// It has a key, but its scope cannot be determined yet.
    NoScope,
    /// It is an attempt at this intent.
    Guarded(Intent),
}

impl<S: Store> IdempotencyLayer<S> {
    /// What the layer will do with a request, from its head alone: for code in front of the layer that authorises,
    /// limits or monitors. Claims nothing and makes no request to the store.
    pub fn inspect(&self, parts: &Parts) -> Inspection {
        match screen(self.shared(), parts) {
            Screened::Pass => Inspection::Passes,
            Screened::BadKey(_) => Inspection::Refused,
            Screened::NoScope => Inspection::NoScope,
            Screened::Guard(Named { prepared, scope, key }) => {
                Inspection::Guarded(Intent::new(scope, prepared.guarded.name().clone(), key))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Guard;
    use crate::http::{KeyRule, Rule};
    use crate::store::memory::MemoryStore;

    #[test]
    fn a_head_tells_what_will_become_of_it() {
        let layer = IdempotencyLayer::builder(Guard::new(MemoryStore::new()))
            .scope_header("x-tenant-id".parse().unwrap())
            .rule(Rule::on("POST /pay").name("pay"))
            .rule(Rule::on("POST /ping").key(KeyRule::Ignored))
            .build()
            .unwrap();
        let inspect = |method: &str, path: &str, headers: &[(&str, &str)]| {
            let mut request = http::Request::builder().method(method).uri(path);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            layer.inspect(&request.body(()).unwrap().into_parts().0)
        };
        let (key, tenant) = (("idempotency-key", "k-1"), ("x-tenant-id", "acme"));
        assert!(matches!(inspect("GET", "/pay", &[key, tenant]), Inspection::Passes));
        assert!(matches!(inspect("POST", "/ping", &[key, tenant]), Inspection::Passes));
        assert!(matches!(inspect("POST", "/else", &[]), Inspection::Passes));
        assert!(matches!(inspect("POST", "/pay", &[]), Inspection::Refused));
        assert!(matches!(inspect("POST", "/pay", &[key, key]), Inspection::Refused));
        assert!(matches!(inspect("POST", "/pay", &[key]), Inspection::NoScope));
        let Inspection::Guarded(intent) = inspect("POST", "/pay", &[key, tenant]) else { panic!() };
        assert_eq!((intent.operation().as_str(), intent.scope().as_str()), ("pay", "acme"));
    }
}
