//! Webhook signatures (HMAC-SHA256), for both ends: the sink signs, the receiver verifies.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Prefix of a [Standard Webhooks](https://www.standardwebhooks.com) secret.
const PREFIX: &str = "whsec_";
/// Length that the specification requires.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// Base64 with or without padding, because secrets are copied from dashboards. Signatures always have the same form.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A secret shared with the other end. `Debug` does not show it.
#[derive(Clone)]
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    /// Parses `whsec_` and base64, the format of Standard Webhooks.
    pub(crate) fn standard(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "invalid webhook secret: it must be {PREFIX} followed by {} to {} bytes in base64",
                SECRET_BYTES.start(),
                SECRET_BYTES.end()
            )
        };
        let encoded = text.strip_prefix(PREFIX).ok_or_else(bad)?;
        let bytes = LENIENT.decode(encoded).map_err(|_| bad())?;
        if SECRET_BYTES.contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(bad()) }
    }

    /// HMAC-SHA256 over the concatenated parts. HMAC takes a key of any length, so this is never `None` in practice.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        parts.iter().for_each(|part| mac.update(part));
        Some(mac)
    }
}

#[cfg(feature = "webhook-receiver")]
impl From<&[u8]> for Secret {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

/// The parts of a message that Standard Webhooks signs.
pub(crate) fn standard_parts<'a>(id: &'a str, timestamp: &'a str, body: &'a [u8]) -> [&'a [u8]; 5] {
    [id.as_bytes(), b".", timestamp.as_bytes(), b".", body]
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_secret_is_not_taken_and_a_good_one_not_shown() {
        for bad in ["", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAAA", "whsec_***"] {
            assert!(Secret::standard(bad).is_err(), "{bad}");
        }
        let secret = Secret::standard("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret");
    }

    #[test]
    fn a_secret_may_lack_its_padding() {
        let [padded, bare] = ["==", ""].map(|end| format!("whsec_{}QQ{end}", "A".repeat(32)));
        assert_eq!(Secret::standard(&padded).unwrap().0, Secret::standard(&bare).unwrap().0);
    }
}
