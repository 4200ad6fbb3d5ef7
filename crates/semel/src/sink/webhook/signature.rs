//! Signatures as [Standard Webhooks](https://www.standardwebhooks.com) has them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::sink::SinkError;

const PREFIX: &str = "whsec_";
/// What the specification asks for.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// A secret shared with a receiver. It is not shown.
#[derive(Clone)]
pub(super) struct Secret(Vec<u8>);

impl Secret {
    pub(super) fn parse(text: &str) -> Result<Self, SinkError> {
        let bad = || {
            SinkError::not_published(format!(
                "a webhook's secret is {PREFIX} and {} to {} bytes in base64",
                SECRET_BYTES.start(),
                SECRET_BYTES.end()
            ))
        };
        let encoded = text.strip_prefix(PREFIX).ok_or_else(bad)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| bad())?;
        if SECRET_BYTES.contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(bad()) }
    }

    /// The value of `webhook-signature` for this message.
    pub(super) fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> Option<String> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's own libraries.
    #[test]
    fn the_signature_is_the_one_others_make() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed.unwrap(), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_bad_secret_is_not_taken_and_a_good_one_not_shown() {
        for bad in ["", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAAA", "whsec_***"] {
            assert!(Secret::parse(bad).is_err(), "{bad}");
        }
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret");
    }
}
