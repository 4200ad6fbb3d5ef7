//! What makes the address of a status resource one that was given out, and not one that was put together.
//!
//! An intent's id is a hash of its scope, operation and key: who knows these knows the id. So the address that a 202
//! gives has a token behind the id, an HMAC under a secret of the service.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::intent::identity::IntentId;
use crate::intent::key::hex;

/// Shorter secrets can be found by trying.
pub(super) const SECRET_BYTES_MIN: usize = 16;
/// Most secrets at once: the one in use, and those it takes the place of.
pub(super) const SECRETS_MAX: usize = 8;

/// What is signed, so that the same secret in another place signs something else.
const PURPOSE: &[u8] = b"semel status resource 1\0";
/// Bytes of a token.
const TOKEN_BYTES: usize = 16;

/// The secrets that tokens are made with. They are not shown.
pub(super) struct Tokens(Vec<Vec<u8>>);

impl Tokens {
    /// The first one makes tokens; all of them are accepted. There is at least one.
    pub(super) fn new(secrets: Vec<Vec<u8>>) -> Self {
        Self(secrets)
    }

    /// With a secret that only this process knows, and only while it lives.
    pub(super) fn random() -> Self {
        let mut secret = vec![0; 32];
        // Without a source of chance: v7 UUIDs, which fall back on their own.
        if getrandom::fill(&mut secret).is_err() {
            secret =
                [uuid::Uuid::now_v7(), uuid::Uuid::now_v7()].iter().flat_map(|id| *id.as_bytes()).collect();
        }
        Self(vec![secret])
    }

    /// What stands behind `status_path` in the address of an intent.
    pub(super) fn place(&self, id: &IntentId) -> String {
        let token = self.0.first().and_then(|secret| mac(secret, id)).map(|mac| mac.finalize().into_bytes());
        format!("{id}.{}", hex(&token.unwrap_or_default()[..TOKEN_BYTES]))
    }

    /// The intent of an address that was given out. The comparison takes the same time wherever it differs.
    pub(super) fn intent(&self, place: &str) -> Option<IntentId> {
        let (id, token) = place.split_once('.')?;
        let id: IntentId = id.parse().ok()?;
        let token = unhex(token)?;
        let made =
            |secret: &Vec<u8>| mac(secret, &id).is_some_and(|mac| mac.verify_truncated_left(&token).is_ok());
        self.0.iter().any(made).then_some(id)
    }
}

fn mac(secret: &[u8], id: &IntentId) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
    mac.update(PURPOSE);
    mac.update(id.as_bytes());
    Some(mac)
}

/// A token in lower case, and nothing else: each address has one spelling.
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
        let place = tokens(&[old]).place(&id);
        assert_eq!(tokens(&[old]).intent(&place), Some(id), "another process with the same secret");
        assert_eq!(tokens(&[new, old]).intent(&place), Some(id), "while it is changed");
        for (wrong, tokens) in [
            (place.clone(), tokens(&[new])),
            (place.clone(), Tokens::random()),
            (id.to_string(), tokens(&[old])),
            (format!("{id}."), tokens(&[old])),
            (place[..place.len() - 2].to_owned(), tokens(&[old])),
            (format!("{place}00"), tokens(&[old])),
            (place.to_ascii_uppercase(), tokens(&[old])),
            (place.replacen("ab", "cd", 1), tokens(&[old])),
            (format!("{id}.{}", "é".repeat(16)), tokens(&[old])),
            (String::new(), tokens(&[old])),
        ] {
            assert_eq!(tokens.intent(&wrong), None, "{wrong}");
        }
        assert_ne!(Tokens::random().place(&id), Tokens::random().place(&id));
        assert_eq!(format!("{:?}", tokens(&[old])), "Tokens");
    }
}
