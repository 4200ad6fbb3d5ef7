//! Ways to get it wrong, each caught by what the others pass.

use http::HeaderMap;
use semel::inbox::webhook::{Stripe, Verified, Verifier, VerifyError};

use crate::request::{BODY, NOW, OTHER, SECRET, stripe};

/// Reads the body, and checks the signature over what it has read: what a framework's JSON extractor leads to.
struct OverTheDocument(Stripe);

impl Verifier for OverTheDocument {
    fn verify(&self, headers: &HeaderMap, body: &[u8], now_s: u64) -> Result<Verified, VerifyError> {
        let document: serde_json::Value =
            serde_json::from_slice(body).map_err(|_| VerifyError::Malformed("no JSON"))?;
        self.0.verify(headers, document.to_string().as_bytes(), now_s)
    }
}

#[test]
fn a_signature_over_the_document_instead_of_the_bytes_is_caught() {
    let wrong = OverTheDocument(Stripe::new([SECRET]).unwrap());
    // The provider's own bytes are refused …
    assert_eq!(stripe(SECRET, NOW).to(&wrong, NOW), Err(VerifyError::Forged));
    // … and bytes that the provider never signed are believed.
    let document: serde_json::Value = serde_json::from_str(BODY).unwrap();
    let signature = crate::request::stripe_signature(SECRET, &NOW.to_string(), &document.to_string());
    let changed = stripe(SECRET, NOW).header("stripe-signature", &format!("t={NOW},v1={signature}"));
    assert!(changed.to(&wrong, NOW).is_ok());
    let right = Stripe::new([SECRET]).unwrap();
    assert!(stripe(SECRET, NOW).to(&right, NOW).is_ok());
    assert_eq!(changed.to(&right, NOW), Err(VerifyError::Forged));
}

/// Believes the time before the signature.
struct TimeOnly;

impl Verifier for TimeOnly {
    fn verify(&self, headers: &HeaderMap, body: &[u8], now_s: u64) -> Result<Verified, VerifyError> {
        match Stripe::new([SECRET]).unwrap().verify(headers, body, now_s) {
            Err(VerifyError::Forged) => Err(VerifyError::Stale),
            other => other,
        }
    }
}

#[test]
fn a_forgery_that_is_reported_as_stale_is_caught() {
    assert_eq!(stripe(OTHER, NOW - 900).to(&TimeOnly, NOW), Err(VerifyError::Stale));
    assert_eq!(stripe(OTHER, NOW - 900).to(&Stripe::new([SECRET]).unwrap(), NOW), Err(VerifyError::Forged));
}
