use super::*;

fn event(payload: impl Into<bytes::Bytes>) -> Event {
    Event::new("payments", "payment.completed", payload).unwrap()
}

fn value<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    message.attributes.iter().find(|(there, _)| there == name).map(|(_, text)| text.as_str())
}

#[test]
fn a_group_is_the_key_or_its_digest_or_the_event() {
    let of = |key: &str| Message::of(&event("{}").key(key).unwrap()).unwrap().group;
    assert_eq!(of("account-7"), "account-7");
    assert_eq!(of(&"a".repeat(128)), "a".repeat(128));
    for odd in ["a b", "Grüße", "sha256:00", &"a".repeat(129)] {
        assert!(of(odd).starts_with("sha256:") && of(odd).len() == 71 && of(odd) != odd, "{odd}");
    }
    assert_ne!(of("a b"), of("a c"));
    let alone = event("{}");
    let message = Message::of(&alone).unwrap();
    assert_eq!(message.group, message.id);
}

#[test]
fn any_payload_comes_back_as_it_was() {
    for bytes in [b"".to_vec(), b"{}".to_vec(), vec![0], vec![255, 254], "a\u{ffff}".into(), "naïve ☃".into()]
    {
        let message = Message::of(&event(bytes.clone())).unwrap();
        assert!(!message.body.is_empty() && is_text(&message.body));
        assert_eq!(payload(&message.body, value(&message, ENCODING)), bytes);
    }
    assert_eq!(payload("?", Some(BASE64)), "?", "a body that cannot be decoded is returned as it is");
}

#[test]
fn headers_are_attributes_as_long_as_they_fit() {
    let few = event("{}").header("region", "eu").unwrap();
    let few = Message::of(&few).unwrap();
    assert_eq!(value(&few, "region"), Some("eu"));
    assert_eq!((value(&few, HEADERS), value(&few, TOPIC)), (None, Some("payments")));
    let odd = Message::of(&event("{}").header("a:b", "1").unwrap()).unwrap();
    assert_eq!(unpacked(value(&odd, HEADERS).unwrap()).unwrap(), [("a:b".into(), "1".into())]);
    let mut many = event(vec![255]).aggregate("payment", "7").unwrap();
    for n in 0..32 {
        many = many.header(&format!("h{n}"), "v").unwrap();
    }
    let many = Message::of(&many).unwrap();
    assert!(many.attributes.len() <= ATTRIBUTES_MAX);
    let packed = unpacked(value(&many, HEADERS).unwrap()).unwrap();
    assert_eq!(packed.len(), 32);
    assert!(packed.contains(&("h31".into(), "v".into())));
}

#[test]
fn what_sqs_cannot_carry_is_an_error() {
    let odd = event("{}").header("note", "a\u{fffe}").unwrap();
    assert!(Message::of(&odd).unwrap_err().contains("note"));
}

#[test]
fn a_request_has_ten_messages_and_a_mebibyte() {
    assert_eq!(fitting([1; 25].into_iter(), 100), 10);
    assert_eq!(fitting([40, 40, 20, 1].into_iter(), 100), 3);
    assert_eq!(fitting([40, 61].into_iter(), 100), 1);
    assert_eq!(fitting([500].into_iter(), 100), 1, "a single message is left for SQS to reject");
    let message = Message::of(&event("12345")).unwrap();
    let attributes: usize = message.attributes.iter().map(|(name, text)| name.len() + text.len() + 6).sum();
    assert_eq!(message.bytes(), 5 + attributes);
}

#[test]
fn a_header_does_not_say_how_the_payload_is_read() {
    let mut forged = event("{}");
    // As a service in another language may insert it.
    for (name, text) in [(ENCODING, EMPTY), (TOPIC, "other"), (HEADERS, "[]")] {
        forged.headers.push((name.to_owned(), text.to_owned()));
    }
    let forged = Message::of(&forged).unwrap();
    let named = |wanted: &str| forged.attributes.iter().filter(|(name, _)| name == wanted).count();
    assert_eq!((named(ENCODING), named(TOPIC), named(HEADERS)), (0, 1, 0));
    assert_eq!(value(&forged, TOPIC), Some("payments"));
}
