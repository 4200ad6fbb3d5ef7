//! What is stored, from fixed inputs. Fingerprints, recipes, intents' ids and lock keys have their own tests beside
//! their code, with digests that another program computed.

use bytes::Bytes;

use super::pinned;
use crate::intent::key::hex;
use crate::store::{Decision, Lineage};
use crate::{Body, Headers, Intent, Key, Operation, Outcome, Scope, StoreTime};

fn intent() -> Intent {
    Intent::new(
        Scope::tenant("acme").unwrap(),
        Operation::new("payment.create").unwrap(),
        Key::new("order-1001").unwrap(),
    )
}

fn outcome() -> Outcome {
    Outcome::new(201, "{\"id\":7}").header("content-type", "application/json").header("x", vec![0xff, 0])
}

#[test]
fn contract_bytes_of_intents_and_outcomes() {
    let scope = Scope::tenant("a/b%").unwrap().actor("ü 1").unwrap().parent("p").unwrap();
    let of = |body| Outcome { code: 404, headers: Headers::NONE, body };
    let reference = Bytes::from_static(b"pi_1");
    let decision = Decision {
        ruling: "applied".into(),
        by: "ana".into(),
        why: "in the dashboard".into(),
        at: StoreTime(1_700_000_000_000),
    };
    let lines = [
        ("scope", scope.as_str().to_owned()),
        ("intent", intent().id().to_string()),
        ("child key", intent().child("charge").as_str().to_owned()),
        ("outcome", hex(&outcome().encode())),
        ("outcome not kept", hex(&of(Body::NotKept).encode())),
        ("outcome by reference", hex(&of(Body::Reference(reference.clone())).encode())),
        ("outcome sealed", hex(&of(Body::Sealed(reference)).encode())),
        ("decision", crate::store::encoding::decision_text(&decision)),
        ("lineage of a system", Lineage::of(&[b"7301", b"1"]).to_string()),
    ];
    let listing: String = lines.iter().map(|(what, stored)| format!("{what}: {stored}\n")).collect();
    pinned("bytes.intent", &listing);
}

/// Compressing and sealing make other bytes each time or with each library; what was written once stays readable.
#[cfg(all(feature = "seal", feature = "zstd"))]
#[test]
fn contract_bytes_that_were_compressed_or_sealed_are_read() {
    use crate::store::protect::{Keys, Protection};

    let keys = Keys::parse(&format!("2026-11 {}", "1a".repeat(32))).unwrap();
    let protection = Protection::none().compress_above(64).seal(keys);
    let long = Outcome::new(201, "{\"amount\":4200}".repeat(20)).header("content-type", "application/json");
    for (stored, wanted) in [(COMPRESSED, long.clone()), (SEALED, outcome()), (COMPRESSED_AND_SEALED, long)] {
        let read = protection.reveal(&intent().id(), Outcome::decode(unhex(stored)).unwrap());
        assert_eq!(read.unwrap(), wanted, "{stored}");
    }
}

#[cfg(all(feature = "seal", feature = "zstd"))]
const COMPRESSED: &str = "020400c9000001010000015628b52ffd6056001502009403010100c900010000000c636f6e74656e742d7479706500000010\
    6170706c69636174696f6e2f6a736f6e7b22616d6f756e74223a343230307d0100a921ea8402";
#[cfg(all(feature = "seal", feature = "zstd"))]
const SEALED: &str = "020400c90000010207323032362d31316375466a7be7312d245c22b82ee53424602da68109cbacb8cb4a72afd2f51c676ac3\
    910b7def365cf52edfbb8358225b680029cb5133761c9e34ef33acbeb207f26c47a761c2504a46f6d887c565c2cf1f195f33\
    658b2e1947d574f280742ea820278dc3a4";
#[cfg(all(feature = "seal", feature = "zstd"))]
const COMPRESSED_AND_SEALED: &str = "020400c90000010307323032362d31318f6f8a029f7a76f75bd68d13e48f2dc06c0b5549bd929fdd4e8b5037819cf24f08d6\
    d6fa41f7760214c6ace420996abcb079f092272cc15021e060476cf49212c14601073426b78b4de6dea586012b27ee71ae0b\
    d93d3e95380b40849805ac6e9a896197e3efb97d344310ced6ac710ae0be82243323b25c";

#[cfg(all(feature = "seal", feature = "zstd"))]
fn unhex(text: &str) -> Bytes {
    let digits: Vec<char> = text.chars().collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

#[cfg(all(feature = "_sql", any(feature = "nats", feature = "sqs")))]
#[test]
fn contract_bytes_of_messages_and_positions() {
    use uuid::Uuid;

    use crate::inbox::Identity;
    use crate::outbox::Event;
    use crate::relay::{BatchCursor, LeftOut, OutboxLineage, Position, SinkCheckpoint};

    let mut listing = String::new();
    let mut line = |what: &str, stored: &str| listing.push_str(&format!("{what}: {stored}\n"));
    for (what, id, lineage) in [
        ("of version 7", "018F4E1C-7A52-7C1E-9A53-2F2C6F0A1B2C", None),
        ("of version 4", "7f8a96d9-e766-432b-a4ad-e1dede51c8cf", None),
        ("counted", "42", Some("cluster 1")),
        ("counted nowhere", "0:42", None),
    ] {
        let identity = Identity::new("kafka:payments", id).unwrap();
        let identity = lineage.into_iter().fold(identity, Identity::lineage);
        line(&format!("identity {what}"), &String::from_utf8(identity.to_bytes()).unwrap());
        line(&format!("mark {what}"), &hex(&identity.mark("mail")));
        line(&format!("key {what}"), identity.key("mail").as_str());
    }
    let lineage = OutboxLineage::read("11111111-2222-4333-8444-555555555555/7301");
    let position = Position { lineage, cursor: BatchCursor::of("[0, 1] 3:9:4..5:5: 0-7") };
    let left_out =
        |topic: Option<&str>| LeftOut { event: Uuid::from_u128(7), topic: topic.map(str::to_owned) };
    for (what, left_out) in [
        ("checkpoint", vec![]),
        ("checkpoint without some", vec![left_out(None)]),
        ("checkpoint without some of a topic", vec![left_out(Some("a \"b\"")), left_out(None)]),
    ] {
        let stored = SinkCheckpoint { position: position.clone(), left_out }.to_bytes().unwrap();
        line(what, &String::from_utf8(stored).unwrap().escape_debug().to_string());
    }
    let event = Event::new("payments", "made", "{}").unwrap().with_id(Uuid::from_u128(7));
    line("deduplication id", &crate::sink::repeats::deduplication_id(&event));
    pinned("bytes.messages", &listing);
}
