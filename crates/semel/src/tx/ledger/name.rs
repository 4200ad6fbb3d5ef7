//! Names of accounts and currencies.

use std::fmt;
use std::sync::Arc;

use super::LedgerError;

/// The name of an account, such as `customer:7`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccountId(Arc<str>);

impl AccountId {
    /// Checks and takes a name: 1 to 200 printable ASCII characters, no spaces.
    pub fn new(name: &str) -> Result<Self, LedgerError> {
        if (1..=200).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(name.into()))
        } else {
            Err(LedgerError::AccountName(name.chars().take(200).collect()))
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A currency by its code, such as `EUR`. semel does not know its minor unit (cents, or nothing smaller in JPY).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Currency(Arc<str>);

impl Currency {
    /// Checks and takes a code: 3 to 12 capital letters and digits.
    pub fn new(code: &str) -> Result<Self, LedgerError> {
        let fine = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
        if (3..=12).contains(&code.len()) && code.bytes().all(fine) {
            Ok(Self(code.into()))
        } else {
            Err(LedgerError::CurrencyName(code.chars().take(200).collect()))
        }
    }

    /// The code.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccountId({})", self.0)
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Currency({})", self.0)
    }
}
