//! The secrets of one provider: several during a rotation.

use hmac::Mac;

use super::verifier::{VerifierError, VerifyError};
use crate::signature::Secret;

/// Most secrets of one verifier: the current one, and those it replaces.
pub const SECRETS_MAX: usize = 8;
/// Most signatures of one request that are checked. Providers send one for each secret in use.
pub const SIGNATURES_MAX: usize = 16;

/// Shorter secrets can be guessed; longer ones are a mistake.
const TEXT_BYTES: std::ops::RangeInclusive<usize> = 8..=1_024;

/// An HMAC-SHA256.
pub(super) type Signature = [u8; 32];

/// Its `Debug` output does not contain the secrets.
#[derive(Clone, Debug)]
pub(super) struct Secrets(Vec<Secret>);

impl Secrets {
    /// Secrets whose text is the key.
    pub(super) fn text(texts: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, VerifierError> {
        Self::new(texts, |text| {
            if text.trim() != text || !TEXT_BYTES.contains(&text.len()) {
                return Err(format!(
                    "a secret must have {} to {} bytes, without leading or trailing whitespace",
                    TEXT_BYTES.start(),
                    TEXT_BYTES.end()
                ));
            }
            Ok(Secret::from(text.as_bytes()))
        })
    }

    /// Secrets as Standard Webhooks writes them.
    pub(super) fn standard(texts: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, VerifierError> {
        Self::new(texts, Secret::standard)
    }

    fn new(
        texts: impl IntoIterator<Item = impl AsRef<str>>,
        read: impl Fn(&str) -> Result<Secret, String>,
    ) -> Result<Self, VerifierError> {
        let mut secrets = Vec::new();
        for text in texts.into_iter().take(SECRETS_MAX + 1) {
            secrets.push(read(text.as_ref()).map_err(|why| VerifierError::Secret { why })?);
        }
        if secrets.is_empty() || secrets.len() > SECRETS_MAX {
            return Err(VerifierError::Count { count: secrets.len() });
        }
        Ok(Self(secrets))
    }

    /// Checks that one of the secrets made one of the signatures. Compares in constant time.
    pub(super) fn check(&self, signed: &[&[u8]], signatures: &[Signature]) -> Result<(), VerifyError> {
        let made = |secret: &Secret| {
            let Some(mac) = secret.mac(signed) else { return false };
            signatures.iter().any(|signature| mac.clone().verify_slice(signature).is_ok())
        };
        if self.0.iter().any(made) { Ok(()) } else { Err(VerifyError::Forged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_a_secret() {
        let none: [&str; 0] = [];
        assert_eq!(Secrets::text(none).unwrap_err(), VerifierError::Count { count: 0 });
        assert!(Secrets::text(["long enough"; SECRETS_MAX]).is_ok());
        assert!(Secrets::text(["long enough"; SECRETS_MAX + 1]).is_err());
        for bad in ["", "short", "with a newline\n", " with a blank", &"x".repeat(1_025)] {
            let error = Secrets::text([bad]).unwrap_err();
            assert!(matches!(error, VerifierError::Secret { .. }), "{bad:?}");
            assert!(bad.is_empty() || !error.to_string().contains(bad), "{error}");
        }
        let shown = format!("{:?}", Secrets::text(["not to be seen"]).unwrap());
        assert!(!shown.contains("seen"), "{shown}");
    }

    #[test]
    fn nothing_is_not_a_signature() {
        assert_eq!(Secrets::text(["a secret"]).unwrap().check(&[b"x"], &[]), Err(VerifyError::Forged));
    }
}
