//! What is just believed, and what is just not.

use std::time::Duration;

use http::HeaderValue;
use semel::inbox::webhook::{
    Github, PlainHmac, SIGNATURES_MAX, StandardWebhooks, Stripe, Verifier, VerifierError, VerifyError,
};

use crate::request::{
    BODY, NOW, OTHER, PROVIDERS, Post, SECRET, github, plain_verifier, standard, standard_signature, stripe,
    stripe_signature,
};

#[test]
fn every_provider_is_believed_and_names_its_event() {
    for (name, make, verifier, _) in PROVIDERS {
        let verified = make(SECRET, NOW).to(&*verifier(&[SECRET]), NOW).unwrap();
        let (id, kind) = match name {
            "stripe" => ("evt_1", Some("charge.succeeded")),
            "github" => ("72d3162e-cc78-11e3-81ab-4c9367dc0958", Some("push")),
            "plain" => ("evt_1", None),
            _ => ("msg_1", Some("charge.succeeded")),
        };
        assert_eq!((&*verified.id, verified.kind.as_deref()), (id, kind), "{name}");
        assert_eq!(verified.signed_at_s, (name != "github").then_some(NOW), "{name}");
    }
}

#[test]
fn one_byte_changed_anywhere_is_refused() {
    for (name, make, verifier, signed) in PROVIDERS {
        let (good, verifier) = (make(SECRET, NOW), verifier(&[SECRET]));
        for at in 0..good.body.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad.body[at] ^= 1 << bit;
                assert_eq!(
                    bad.to(&*verifier, NOW),
                    Err(VerifyError::Forged),
                    "{name}: byte {at} of the body"
                );
            }
        }
        for cut in [0, 1, good.body.len() - 1] {
            let mut bad = good.clone();
            bad.body.truncate(cut);
            assert_eq!(bad.to(&*verifier, NOW), Err(VerifyError::Forged), "{name}: {cut} bytes of the body");
        }
        let mut tried = 0;
        for header in signed {
            let text = good.headers[*header].as_bytes().to_vec();
            for at in 0..text.len() {
                for other in 0..=255 {
                    let mut changed = text.clone();
                    changed[at] = other;
                    let Ok(value) = HeaderValue::from_bytes(&changed) else { continue };
                    if changed == text {
                        continue;
                    }
                    let mut bad = good.clone();
                    bad.headers.insert(*header, value);
                    let refused = bad.to(&*verifier, NOW);
                    assert!(refused.is_err(), "{name}: byte {at} of {header} as {other}: {refused:?}");
                    assert_ne!(
                        refused,
                        Err(VerifyError::Stale),
                        "{name}: the time was believed before the signature"
                    );
                    tried += 1;
                }
            }
            let mut bad = good.clone();
            bad.headers.remove(*header);
            assert!(
                matches!(bad.to(&*verifier, NOW), Err(VerifyError::Malformed(_))),
                "{name} without {header}"
            );
            let mut bad = good.clone();
            bad.headers.append(*header, good.headers[*header].clone());
            assert!(
                matches!(bad.to(&*verifier, NOW), Err(VerifyError::Malformed(_))),
                "{name}, {header} twice"
            );
        }
        assert!(tried > 5_000, "{name}: {tried}");
    }
}

#[test]
fn a_secret_is_changed_without_losing_an_event() {
    for (name, make, verifier, _) in PROVIDERS {
        let both = verifier(&[OTHER, SECRET]);
        assert!(make(SECRET, NOW).to(&*both, NOW).is_ok(), "{name}: the old one");
        assert!(make(OTHER, NOW).to(&*both, NOW).is_ok(), "{name}: the new one");
        let only = verifier(&[OTHER]);
        assert_eq!(make(SECRET, NOW).to(&*only, NOW), Err(VerifyError::Forged), "{name}: withdrawn");
    }
}

#[test]
fn the_provider_may_sign_with_several_secrets() {
    let (old, new) =
        (stripe_signature(OTHER, &NOW.to_string(), BODY), stripe_signature(SECRET, &NOW.to_string(), BODY));
    let post = stripe(SECRET, NOW).header("stripe-signature", &format!("t={NOW},v1={old},v1={new},v0={old}"));
    assert!(post.to(&Stripe::new([SECRET]).unwrap(), NOW).is_ok());
    let at = NOW.to_string();
    let list = format!(
        "v1a,AAAA {} {}",
        standard_signature(OTHER, "msg_1", &at, BODY),
        standard_signature(SECRET, "msg_1", &at, BODY)
    );
    let post = standard("webhook", SECRET, NOW).header("webhook-signature", &list);
    assert!(post.to(&StandardWebhooks::new([SECRET]).unwrap(), NOW).is_ok());
}

#[test]
fn only_so_many_signatures_are_looked_at() {
    let at = NOW.to_string();
    let (good, bad) = (stripe_signature(SECRET, &at, BODY), stripe_signature(OTHER, &at, BODY));
    let (good_v1, bad_v1) =
        (standard_signature(SECRET, "msg_1", &at, BODY), standard_signature(OTHER, "msg_1", &at, BODY));
    for (before, believed) in [(SIGNATURES_MAX - 1, true), (SIGNATURES_MAX, false)] {
        let list = format!("t={at}{},v1={good}", format!(",v1={bad}").repeat(before));
        let post = stripe(SECRET, NOW).header("stripe-signature", &list);
        assert_eq!(post.to(&Stripe::new([SECRET]).unwrap(), NOW).is_ok(), believed, "{before} before");
        let list = format!("{}{good_v1}", format!("{bad_v1} ").repeat(before));
        let post = standard("svix", SECRET, NOW).header("svix-signature", &list);
        assert_eq!(
            post.to(&StandardWebhooks::new([SECRET]).unwrap(), NOW).is_ok(),
            believed,
            "{before} before"
        );
    }
}

#[test]
fn the_tolerance_holds_in_both_directions_to_the_second() {
    for (name, make, verifier, _) in PROVIDERS.into_iter().filter(|(name, ..)| *name != "github") {
        let verifier = verifier(&[SECRET]);
        for (at, fresh) in
            [(NOW - 300, true), (NOW - 301, false), (NOW + 300, true), (NOW + 301, false), (0, false)]
        {
            let refused = make(SECRET, at).to(&*verifier, NOW).err();
            assert_eq!(refused, (!fresh).then_some(VerifyError::Stale), "{name} at {at}");
        }
        // What is old and forged is forged: stale means that the provider did sign it once.
        assert_eq!(make(OTHER, NOW - 900).to(&*verifier, NOW), Err(VerifyError::Forged), "{name}");
    }
    let minute = Duration::from_secs(60);
    let strict: [(Post, Box<dyn Verifier>); 3] = [
        (stripe(SECRET, NOW - 61), Box::new(Stripe::new([SECRET]).unwrap().tolerance(minute))),
        (
            standard("webhook", SECRET, NOW - 61),
            Box::new(StandardWebhooks::new([SECRET]).unwrap().tolerance(minute)),
        ),
        (crate::request::plain(SECRET, NOW - 61), Box::new(plain_verifier(&[SECRET]).tolerance(minute))),
    ];
    for (post, verifier) in strict {
        assert!(post.to(&*verifier, NOW - 1).is_ok());
        assert_eq!(post.to(&*verifier, NOW), Err(VerifyError::Stale));
    }
}

#[test]
fn malformed_requests_and_forged_ones_get_different_errors() {
    let verifier = Stripe::new([SECRET]).unwrap();
    let wrong = stripe_signature(OTHER, &NOW.to_string(), BODY);
    for (text, refusal) in [
        (format!("t={NOW},v1={wrong}"), VerifyError::Forged),
        ("t".to_owned(), VerifyError::Malformed("not a list of names and values")),
        (format!("t={NOW}"), VerifyError::Malformed("no signature of a known scheme")),
        (format!("t={NOW},v0={wrong}"), VerifyError::Malformed("no signature of a known scheme")),
        (format!("t={NOW},v1={}", &wrong[1..]), VerifyError::Malformed("no signature of a known scheme")),
        (format!("v1={wrong}"), VerifyError::Malformed("no timestamp")),
        (format!("t={NOW},t={NOW},v1={wrong}"), VerifyError::Malformed("two timestamps")),
        (format!("t=-1,v1={wrong}"), VerifyError::Malformed("a timestamp is not a number of seconds")),
        (
            format!("t={}0,v1={wrong}", u64::MAX),
            VerifyError::Malformed("a timestamp is not a number of seconds"),
        ),
    ] {
        let post = stripe(SECRET, NOW).header("stripe-signature", &text);
        assert_eq!(post.to(&verifier, NOW), Err(refusal), "{text}");
    }
    let other = github(SECRET).header("x-hub-signature-256", "sha1=757107ea0eb2509fc211221cce984b8a37570b6d");
    let verifier = Github::new([SECRET]).unwrap();
    assert_eq!(other.to(&verifier, NOW), Err(VerifyError::Malformed("not an HMAC-SHA256 signature")));
}

#[test]
fn an_event_without_an_id_gets_an_error_of_its_own() {
    let mut without_id = github(SECRET);
    without_id.headers.remove("x-github-delivery");
    assert_eq!(without_id.to(&Github::new([SECRET]).unwrap(), NOW), Err(VerifyError::MissingId));
    let elsewhere = plain_verifier(&[SECRET]).id_at("/event/id").unwrap();
    assert_eq!(crate::request::plain(SECRET, NOW).to(&elsewhere, NOW), Err(VerifyError::MissingId));
    // An id in an unsigned header is only asked for when the signature is right.
    let forged = without_id.body("{}");
    assert_eq!(forged.to(&Github::new([SECRET]).unwrap(), NOW), Err(VerifyError::Forged));
}

#[test]
fn secrets_are_not_shown_and_mistakes_are_errors_at_the_start() {
    let shown = format!(
        "{:?} {:?} {:?} {:?}",
        Stripe::new([SECRET]).unwrap(),
        Github::new([SECRET]).unwrap(),
        StandardWebhooks::new([SECRET]).unwrap(),
        plain_verifier(&[SECRET])
    );
    assert!(!shown.contains("whsec") && !shown.contains("MfKQ"), "{shown}");
    assert!(
        matches!(Stripe::new([""]), Err(VerifierError::Secret { .. })),
        "anybody could sign with nothing"
    );
    assert!(matches!(StandardWebhooks::new(["not base64"]), Err(VerifierError::Secret { .. })));
    assert!(matches!(PlainHmac::new("no header", [SECRET]), Err(VerifierError::Header { .. })));
    let plain = PlainHmac::new("x-signature", [SECRET]).unwrap();
    assert!(matches!(plain.id_at("id"), Err(VerifierError::Pointer { .. })));
}
