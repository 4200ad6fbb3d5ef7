//! Signs the URL of a status resource, so that it cannot be forged.
//!
//! An intent's id is a hash of its scope, operation and key: anyone who knows those three can compute the id. So the
//! URL in a 202 has a token after the id, an HMAC under a secret of the service.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::intent::identity::IntentId;
use crate::intent::key::hex;

/// Shorter secrets can be guessed.
pub(super) const SECRET_BYTES_MIN: usize = 16;
/// Most secrets at once: the one in use, and those it replaces.
pub(super) const SECRETS_MAX: usize = 8;

/// Domain separation: the same secret used elsewhere makes other signatures.
const PURPOSE: &[u8] = b"semel status resource 1\0";
/// Bytes of a token.
const TOKEN_BYTES: usize = 16;

/// The secrets that tokens are made with. `Debug` does not show them.
pub(super) struct Tokens(Vec<Vec<u8>>);

impl Tokens {
    /// The first one makes tokens; all of them are accepted. There is at least one.
    pub(super) fn new(secrets: Vec<Vec<u8>>) -> Self {
        Self(secrets)
    }

    /// With a random secret that only this process knows.
    pub(super) fn random() -> Self {
        let mut secret = vec![0; 32];
        // Without a system source of randomness: v7 UUIDs, which have their own fallback.
        if getrandom::fill(&mut secret).is_err() {
            secret =
                [uuid::Uuid::now_v7(), uuid::Uuid::now_v7()].iter().flat_map(|id| *id.as_bytes()).collect();
        }
        Self(vec![secret])
    }

    /// The last segment of an intent's status URL, after `status_path`: `{id}.{token}`.
    pub(super) fn segment(&self, id: &IntentId) -> String {
        let token = self.0.first().and_then(|secret| mac(secret, id)).map(|mac| mac.finalize().into_bytes());
        format!("{id}.{}", hex(&token.unwrap_or_default()[..TOKEN_BYTES]))
    }

    /// The intent of a segment with a valid token. The comparison takes constant time.
    pub(super) fn intent(&self, segment: &str) -> Option<IntentId> {
        let (id, token) = segment.split_once('.')?;
        let id: IntentId = id.parse().ok()?;
        let token = unhex(token)?;
        let is_valid =
            |secret: &Vec<u8>| mac(secret, &id).is_some_and(|mac| mac.verify_truncated_left(&token).is_ok());
        self.0.iter().any(is_valid).then_some(id)
    }
}

fn mac(secret: &[u8], id: &IntentId) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
    mac.update(PURPOSE);
    mac.update(id.as_bytes());
    Some(mac)
}

/// Parses a token in lower case only, so that each URL has one spelling.
fn unhex(text: &str) -> Option<[u8; TOKEN_BYTES]> {
    let mut token = [0; TOKEN_BYTES];
    if text.len() != 2 * TOKEN_BYTES || !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    for (byte, pair) in token.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(token)
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(secrets: &[&str]) -> Tokens {
        Tokens::new(secrets.iter().map(|secret| secret.as_bytes().to_vec()).collect())
    }

    #[test]
    fn only_what_was_given_out_is_an_address() {
        let id: IntentId = "ab".repeat(32).parse().unwrap();
        let (old, new) = ("the secret of last year", "the secret of this year");
        let segment = tokens(&[old]).segment(&id);
        assert_eq!(tokens(&[old]).intent(&segment), Some(id), "another process with the same secret");
        assert_eq!(tokens(&[new, old]).intent(&segment), Some(id), "while secrets are rotated");
        for (wrong, tokens) in [
            (segment.clone(), tokens(&[new])),
            (segment.clone(), Tokens::random()),
            (id.to_string(), tokens(&[old])),
            (format!("{id}."), tokens(&[old])),
            (segment[..segment.len() - 2].to_owned(), tokens(&[old])),
            (format!("{segment}00"), tokens(&[old])),
            (segment.to_ascii_uppercase(), tokens(&[old])),
            (segment.replacen("ab", "cd", 1), tokens(&[old])),
            (format!("{id}.{}", "é".repeat(16)), tokens(&[old])),
            (String::new(), tokens(&[old])),
        ] {
            assert_eq!(tokens.intent(&wrong), None, "{wrong}");
        }
        assert_ne!(Tokens::random().segment(&id), Tokens::random().segment(&id));
        assert_eq!(format!("{:?}", tokens(&[old])), "Tokens");
    }

    #[test]
    fn contract_status_urls_that_clients_were_given() {
        let id: IntentId = "ab".repeat(32).parse().unwrap();
        let listing = format!("segment: {}\n", tokens(&["the secret of last year"]).segment(&id));
        crate::contracts::pinned("bytes.status_url", &listing);
    }
}
