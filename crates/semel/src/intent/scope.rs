//! Whose intent it is.

use std::fmt;

/// Longest part of a scope in bytes.
pub const SCOPE_PART_BYTES_MAX: usize = 128;

/// The stable principal an intent belongs to: tenant, actor within it, parent resource.
///
/// Two tenants may use the same key. A scope holds only what stays the same between two retries: never a
/// token, a deploy or the spelling of a route, which would turn a retry into a new intent.
///
/// ```
/// use semel::Scope;
///
/// let scope = Scope::tenant("acme")?.actor("user-42")?;
/// assert_eq!(scope.as_str(), "acme/user-42");
/// # Ok::<(), semel::ScopeError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    /// Parts joined by `/`, with `/` and `%` inside a part escaped: one text per scope, one scope per text.
    text: Box<str>,
}

/// Why a text is not part of a [`Scope`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScopeError {
    /// An empty tenant would put all callers into one scope unnoticed.
    #[error("the {part} of a scope is empty; name it, or use single_tenant if there is only one")]
    Empty {
        /// `tenant`, `actor` or `parent`.
        part: &'static str,
    },
    /// Longer than [`SCOPE_PART_BYTES_MAX`].
    #[error("the {part} of a scope has {len} bytes; at most {SCOPE_PART_BYTES_MAX} are allowed")]
    TooLong {
        /// `tenant`, `actor` or `parent`.
        part: &'static str,
        /// Its length in bytes.
        len: usize,
    },
    /// A control character.
    #[error("the {part} of a scope has a control character at byte {at}")]
    Character {
        /// `tenant`, `actor` or `parent`.
        part: &'static str,
        /// Offset of the byte.
        at: usize,
    },
    /// A part was given twice, or after a later one.
    #[error("the {part} of a scope is set twice or out of order; tenant, then actor, then parent")]
    Order {
        /// `actor` or `parent`.
        part: &'static str,
    },
    /// A stored text that is not a scope.
    #[error("{text:?} is not the text of a scope")]
    Text {
        /// The text.
        text: String,
    },
}

impl Scope {
    /// The scope of a service that has no tenants. It has to be chosen explicitly; there is no default scope.
    pub fn single_tenant() -> Self {
        Self { text: "".into() }
    }

    /// The scope of one tenant.
    pub fn tenant(tenant: &str) -> Result<Self, ScopeError> {
        Ok(Self { text: escaped("tenant", tenant)?.into() })
    }

    /// Narrows to one actor (user, account) of the tenant.
    pub fn actor(self, actor: &str) -> Result<Self, ScopeError> {
        if self.text.contains('/') {
            return Err(ScopeError::Order { part: "actor" });
        }
        Ok(Self { text: format!("{}/{}", self.text, escaped("actor", actor)?).into() })
    }

    /// Narrows to one parent resource, such as the cart an order is made from.
    pub fn parent(self, parent: &str) -> Result<Self, ScopeError> {
        let parent = escaped("parent", parent)?;
        match self.text.matches('/').count() {
            0 => Ok(Self { text: format!("{}//{parent}", self.text).into() }),
            1 => Ok(Self { text: format!("{}/{parent}", self.text).into() }),
            _ => Err(ScopeError::Order { part: "parent" }),
        }
    }

    /// The one text of this scope: `tenant`, `tenant/actor`, `tenant/actor/parent` or `tenant//parent`;
    /// empty for a single tenant. `/` and `%` inside a part are written `%2F` and `%25`.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The tenant's part of [`as_str`](Scope::as_str), escaped as there; empty for a single tenant.
    pub fn tenant_text(&self) -> &str {
        self.text.split('/').next().unwrap_or("")
    }

    /// The tenant as it was given; empty for a single tenant.
    pub fn tenant_name(&self) -> String {
        unescaped(self.tenant_text()).unwrap_or_default()
    }

    /// Reads back what [`as_str`](Scope::as_str) gave.
    pub fn from_text(text: &str) -> Result<Self, ScopeError> {
        let wrong = || ScopeError::Text { text: text.to_owned() };
        let parts: Vec<&str> = text.split('/').collect();
        let plain: Option<Vec<String>> = parts.iter().map(|part| unescaped(part)).collect();
        let plain = plain.ok_or_else(wrong)?;
        let mut scope = if plain[0].is_empty() { Self::single_tenant() } else { Self::tenant(&plain[0])? };
        if plain.len() > 3 || (plain.len() > 1 && plain[plain.len() - 1].is_empty()) {
            return Err(wrong());
        }
        if plain.len() > 1 && !plain[1].is_empty() {
            scope = scope.actor(&plain[1])?;
        }
        if plain.len() > 2 {
            scope = scope.parent(&plain[2])?;
        }
        if &*scope.text == text { Ok(scope) } else { Err(wrong()) }
    }
}

fn escaped(part: &'static str, text: &str) -> Result<String, ScopeError> {
    if text.is_empty() {
        return Err(ScopeError::Empty { part });
    }
    if text.len() > SCOPE_PART_BYTES_MAX {
        return Err(ScopeError::TooLong { part, len: text.len() });
    }
    if let Some((at, _)) = text.char_indices().find(|(_, c)| c.is_control()) {
        return Err(ScopeError::Character { part, at });
    }
    Ok(text.replace('%', "%25").replace('/', "%2F"))
}

fn unescaped(part: &str) -> Option<String> {
    let plain = part.replace("%2F", "/").replace("%25", "%");
    // Only the two escapes above exist; anything else does not survive the round trip.
    (plain.replace('%', "%25").replace('/', "%2F") == part).then_some(plain)
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({:?})", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scope_has_its_own_text_and_reads_back() {
        let acme = || Scope::tenant("acme").unwrap();
        let scopes = [
            (Scope::single_tenant(), ""),
            (acme(), "acme"),
            (acme().actor("u1").unwrap(), "acme/u1"),
            (acme().actor("u1").unwrap().parent("cart-7").unwrap(), "acme/u1/cart-7"),
            (acme().parent("cart-7").unwrap(), "acme//cart-7"),
            (Scope::tenant("acme/u1").unwrap(), "acme%2Fu1"),
            (Scope::tenant("acme%2Fu1").unwrap(), "acme%252Fu1"),
            (Scope::single_tenant().actor("u1").unwrap(), "/u1"),
            (Scope::tenant("käse").unwrap(), "käse"),
        ];
        for (scope, text) in &scopes {
            assert_eq!(scope.as_str(), *text);
            assert_eq!(&Scope::from_text(text).unwrap(), scope);
        }
        for tenant in ["acme", "org/42", "100%", "a%2Fb"] {
            assert_eq!(Scope::tenant(tenant).unwrap().actor("u1").unwrap().tenant_name(), tenant);
        }
        for bad in ["acme/", "a/b/c/d", "%2f", "%zz", "/", "//", "a\nb"] {
            assert!(Scope::from_text(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn bad_parts_are_refused() {
        assert_eq!(Scope::tenant("").unwrap_err(), ScopeError::Empty { part: "tenant" });
        assert!(Scope::tenant(&"t".repeat(129)).is_err());
        assert_eq!(Scope::tenant("a\0").unwrap_err(), ScopeError::Character { part: "tenant", at: 1 });
        let full = Scope::tenant("a").unwrap().parent("p").unwrap();
        assert_eq!(full.clone().actor("u").unwrap_err(), ScopeError::Order { part: "actor" });
        assert_eq!(full.parent("q").unwrap_err(), ScopeError::Order { part: "parent" });
    }
}
