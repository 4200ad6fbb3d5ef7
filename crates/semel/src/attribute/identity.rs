//! What a function may use as its key and scope: semel's own types, or a string.

use std::sync::Arc;

use crate::intent::key::{Key, KeyError};
use crate::intent::scope::{Scope, ScopeError};

/// What `key =` accepts.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key",
    label = "use a `semel::Key`, a `String` or a `&str`"
)]
pub trait ToKey {
    /// The key.
    fn to_key(&self) -> Result<Key, KeyError>;
}

impl ToKey for Key {
    fn to_key(&self) -> Result<Key, KeyError> {
        Ok(self.clone())
    }
}

impl ToKey for str {
    fn to_key(&self) -> Result<Key, KeyError> {
        Key::new(self)
    }
}

impl ToKey for String {
    fn to_key(&self) -> Result<Key, KeyError> {
        Key::new(self.as_str())
    }
}

impl<K: ToKey + ?Sized> ToKey for &K {
    fn to_key(&self) -> Result<Key, KeyError> {
        (**self).to_key()
    }
}

impl<K: ToKey + ?Sized> ToKey for Arc<K> {
    fn to_key(&self) -> Result<Key, KeyError> {
        (**self).to_key()
    }
}

/// What `scope =` accepts.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a scope",
    label = "use a `semel::Scope`, or the tenant as a `String` or a `&str`"
)]
pub trait ToScope {
    /// The scope.
    fn to_scope(&self) -> Result<Scope, ScopeError>;
}

impl ToScope for Scope {
    fn to_scope(&self) -> Result<Scope, ScopeError> {
        Ok(self.clone())
    }
}

impl ToScope for str {
    fn to_scope(&self) -> Result<Scope, ScopeError> {
        Scope::tenant(self)
    }
}

impl ToScope for String {
    fn to_scope(&self) -> Result<Scope, ScopeError> {
        Scope::tenant(self)
    }
}

impl<T: ToScope + ?Sized> ToScope for &T {
    fn to_scope(&self) -> Result<Scope, ScopeError> {
        (**self).to_scope()
    }
}

impl<T: ToScope + ?Sized> ToScope for Arc<T> {
    fn to_scope(&self) -> Result<Scope, ScopeError> {
        (**self).to_scope()
    }
}
