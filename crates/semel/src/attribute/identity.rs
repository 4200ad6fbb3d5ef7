//! What a function may give as its key and scope: ours, or the text of one.

use std::sync::Arc;

use crate::intent::key::{Key, KeyError};
use crate::intent::scope::{Scope, ScopeError};

/// What can stand after `key =`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no key",
    label = "give a `semel::Key`, a `String` or a `&str`"
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

/// What can stand after `scope =`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no scope",
    label = "give a `semel::Scope`, or the tenant as a `String` or a `&str`"
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
