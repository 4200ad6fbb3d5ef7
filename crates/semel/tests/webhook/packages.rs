//! The providers' own packages sign, and are believed; and they refuse what is refused here.

use std::io::Write;
use std::process::{Command, Stdio};

use semel::inbox::webhook::{StandardWebhooks, Stripe, Verifier, VerifyError};
use serde_json::{Value, json};

use crate::request::{NOW, OTHER, Post, SECRET};

const PACKAGES: [&str; 3] = ["stripe==16.1.0", "svix==2.9.1", "standardwebhooks==1.1.0"];
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/webhook/sign.py");

/// Bodies that somebody who reads and writes them again would change, and whether they say which event they are.
const BODIES: [(&str, bool); 6] = [
    (r#"{"id":"evt_1","type":"charge.succeeded"}"#, true),
    ("{ \"id\" : \"evt_1\",\n\t\"amount\": 1.0e2, \"amount\": 100.00 }", true),
    (r#"{"name":"Zoë \u00eb 💶","id":"evt_1"}"#, true),
    (r#"{"id":12345678901234567890123}"#, false),
    ("not json at all", false),
    ("", false),
];

fn signed(asked: &[Value]) -> Vec<String> {
    let python = testkit::python::with(&PACKAGES).unwrap();
    let mut child = Command::new(python)
        .arg(SCRIPT)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines: String = asked.iter().map(|asked| format!("{asked}\n")).collect();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Slow: installs the packages where they are not there yet.
#[test]
fn what_the_packages_of_stripe_svix_and_standard_webhooks_sign_is_believed() {
    let mut asked = Vec::new();
    for scheme in ["stripe", "standard", "svix"] {
        for (body, named) in BODIES {
            asked.push(json!({"scheme": scheme, "secret": SECRET, "id": "msg_1", "at": NOW, "body": body, "named": named}));
        }
    }
    let signatures = signed(&asked);
    assert_eq!(signatures.len(), asked.len());
    for (asked, signature) in asked.iter().zip(&signatures) {
        let (scheme, body) = (asked["scheme"].as_str().unwrap(), asked["body"].as_str().unwrap());
        let at = NOW.to_string();
        let make = |secret: &str| -> Box<dyn Verifier> {
            match scheme {
                "stripe" => Box::new(Stripe::new([secret]).unwrap()),
                _ => Box::new(StandardWebhooks::new([secret]).unwrap()),
            }
        };
        let post = match scheme {
            "stripe" => Post::new(&[("stripe-signature", signature)], body.as_bytes()),
            _ => {
                let prefix = if scheme == "svix" { "svix" } else { "webhook" };
                let [id, time, list] =
                    ["id", "timestamp", "signature"].map(|name| format!("{prefix}-{name}"));
                Post::new(&[(&id, "msg_1"), (&time, &at), (&list, signature)], body.as_bytes())
            }
        };
        // Stripe's events say in their bodies which they are.
        let named = scheme != "stripe" || asked["named"] == true;
        let refused = post.to(&*make(SECRET), NOW).err();
        assert_eq!(refused, (!named).then_some(VerifyError::MissingId), "{asked}");
        assert_eq!(post.to(&*make(OTHER), NOW), Err(VerifyError::Forged), "{asked}");
        assert_eq!(
            post.body(&format!("{body} ")).to(&*make(SECRET), NOW),
            Err(VerifyError::Forged),
            "{asked}"
        );
    }
}
