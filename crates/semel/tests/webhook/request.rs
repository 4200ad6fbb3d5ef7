//! Requests as the providers make them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName, HeaderValue};
use semel::inbox::webhook::{Github, PlainHmac, StandardWebhooks, Stripe, Verified, Verifier, VerifyError};
use sha2::Sha256;

/// When everything happens.
pub const NOW: u64 = 1_700_000_000;
pub const BODY: &str = r#"{"id": "evt_1", "type": "charge.succeeded", "amount": 1e2}"#;
pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
pub const OTHER: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// What a provider posts.
#[derive(Clone, Debug)]
pub struct Post {
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Post {
    pub fn new(headers: &[(&str, &str)], body: &[u8]) -> Self {
        let headers = headers.iter().map(|(name, text)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(text).unwrap())
        });
        Self { headers: headers.collect(), body: body.to_vec() }
    }

    pub fn header(mut self, name: &'static str, text: &str) -> Self {
        self.headers.insert(name, HeaderValue::from_str(text).unwrap());
        self
    }

    pub fn body(mut self, body: &str) -> Self {
        self.body = body.into();
        self
    }

    pub fn to(&self, verifier: &dyn Verifier, now_s: u64) -> Result<Verified, VerifyError> {
        verifier.verify(&self.headers, &self.body, now_s)
    }
}

fn mac(secret: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn stripe_signature(secret: &str, at: &str, body: &str) -> String {
    hex(&mac(secret.as_bytes(), &[at.as_bytes(), b".", body.as_bytes()]))
}

pub fn stripe(secret: &str, at: u64) -> Post {
    let signature = stripe_signature(secret, &at.to_string(), BODY);
    Post::new(&[("stripe-signature", &format!("t={at},v1={signature}"))], BODY.as_bytes())
}

pub fn github(secret: &str) -> Post {
    let signature = format!("sha256={}", hex(&mac(secret.as_bytes(), &[BODY.as_bytes()])));
    let headers = [
        ("x-hub-signature-256", &*signature),
        ("x-github-delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958"),
        ("x-github-event", "push"),
    ];
    Post::new(&headers, BODY.as_bytes())
}

pub fn standard_signature(secret: &str, id: &str, at: &str, body: &str) -> String {
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let signed = [id.as_bytes(), b".", at.as_bytes(), b".", body.as_bytes()];
    format!("v1,{}", STANDARD.encode(mac(&key, &signed)))
}

pub fn standard(prefix: &str, secret: &str, at: u64) -> Post {
    let (at, id) = (at.to_string(), "msg_1");
    let signature = standard_signature(secret, id, &at, BODY);
    let names = ["id", "timestamp", "signature"].map(|name| format!("{prefix}-{name}"));
    Post::new(&[(&names[0], id), (&names[1], &at), (&names[2], &signature)], BODY.as_bytes())
}

pub fn plain(secret: &str, at: u64) -> Post {
    let at = at.to_string();
    let signature = mac(secret.as_bytes(), &[b"v0:", at.as_bytes(), b":", BODY.as_bytes()]);
    let signature = format!("v0={}", STANDARD.encode(signature));
    Post::new(&[("x-signature", &signature), ("x-time", &at)], BODY.as_bytes())
}

pub fn plain_verifier(secrets: &[&str]) -> PlainHmac {
    let plain = PlainHmac::new("x-signature", secrets).unwrap().base64().prefix("v0=");
    plain.timestamp("x-time").unwrap().signed("v0:", ":").id_at("/id").unwrap()
}

type Make = fn(&str, u64) -> Post;
type Verifiers = fn(&[&str]) -> Box<dyn Verifier>;

/// Each provider: its name, how it signs with a secret at a time, who believes it, and which headers are signed.
pub const PROVIDERS: [(&str, Make, Verifiers, &[&str]); 5] = [
    ("stripe", stripe, |secrets| Box::new(Stripe::new(secrets).unwrap()), &["stripe-signature"]),
    (
        "github",
        |secret, _| github(secret),
        |secrets| Box::new(Github::new(secrets).unwrap()),
        &["x-hub-signature-256"],
    ),
    (
        "standard",
        |secret, at| standard("webhook", secret, at),
        |secrets| Box::new(StandardWebhooks::new(secrets).unwrap()),
        &["webhook-id", "webhook-timestamp", "webhook-signature"],
    ),
    (
        "svix",
        |secret, at| standard("svix", secret, at),
        |secrets| Box::new(StandardWebhooks::new(secrets).unwrap()),
        &["svix-id", "svix-timestamp", "svix-signature"],
    ),
    ("plain", plain, |secrets| Box::new(plain_verifier(secrets)), &["x-signature", "x-time"]),
];
