//! Signatures as defined by [Standard Webhooks](https://www.standardwebhooks.com).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::Mac;

use crate::signature::{Secret, standard_parts};

/// The value of `webhook-signature` for this message.
pub(super) fn sign(secret: &Secret, id: &str, timestamp: u64, body: &[u8]) -> Option<String> {
    let mac = secret.mac(&standard_parts(id, &timestamp.to_string(), body))?;
    Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example from the specification's libraries.
    #[test]
    fn the_signature_is_the_one_others_make() {
        let secret = Secret::standard("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed = sign(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed.unwrap(), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
