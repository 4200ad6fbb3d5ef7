//! Headers and bodies by chance: never a panic, never believed. `SEMEL_ROUNDS` for more of them.

use http::{HeaderName, HeaderValue};
use testkit::seed::rng;

use crate::request::{NOW, OTHER, PROVIDERS, Post, SECRET};

/// Pieces that signatures are made of.
const PIECES: [&str; 16] = [
    "t=",
    "v1=",
    "v1,",
    "v0=",
    "sha256=",
    ",",
    " ",
    "=",
    "1700000000",
    "whsec_",
    "\t",
    "==",
    "-1",
    "\u{e9}",
    "99999999999999999999",
    "0000000000000000000000000000000000000000000000000000000000000000",
];

fn rounds() -> usize {
    std::env::var("SEMEL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4_000)
}

/// A text of pieces, of a good one's parts, and of noise.
fn text(rng: &mut fastrand::Rng, good: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for _ in 0..rng.usize(0..12) {
        match rng.u8(0..4) {
            0 => text.extend(PIECES[rng.usize(..PIECES.len())].as_bytes()),
            1 => text.extend((0..rng.usize(0..40)).map(|_| rng.u8(..))),
            _ if good.is_empty() => {}
            _ => {
                let from = rng.usize(..good.len());
                text.extend(&good[from..rng.usize(from..=good.len())]);
            }
        }
    }
    text
}

#[test]
fn what_chance_makes_is_never_believed_and_breaks_nothing() {
    let mut rng = rng();
    let mut whole = 0;
    for round in 0..rounds() {
        let (name, make, verifier, signed) = PROVIDERS[round % PROVIDERS.len()];
        let verifier = verifier(&[SECRET]);
        // A good one, a good one of somebody else's, or nothing; and then something happens to it.
        let mut post = match rng.u8(0..3) {
            0 => make(SECRET, NOW),
            1 => make(OTHER, NOW),
            _ => Post::new(&[], b""),
        };
        let good = post.clone();
        for _ in 0..rng.usize(1..4) {
            let header = signed[rng.usize(..signed.len())];
            let old = post.headers.get(header).map_or(Vec::new(), |value| value.as_bytes().to_vec());
            match rng.u8(0..6) {
                0 => post.body = text(&mut rng, &good.body),
                1 if !post.body.is_empty() => {
                    let at = rng.usize(..post.body.len());
                    post.body[at] = rng.u8(..);
                }
                2 => {
                    post.headers.remove(header);
                }
                3 if !old.is_empty() => {
                    let (mut text, at) = (old.clone(), rng.usize(..old.len()));
                    text[at] = rng.u8(33..127);
                    post.headers.insert(header, HeaderValue::from_bytes(&text).unwrap());
                }
                _ => {
                    let text: Vec<u8> =
                        text(&mut rng, &old).into_iter().filter(|b| *b >= 32 && *b != 127).collect();
                    let name: HeaderName = header.parse().unwrap();
                    let value = HeaderValue::from_bytes(&text).unwrap();
                    if rng.bool() {
                        post.headers.insert(name, value)
                    } else {
                        post.headers.append(name, value);
                        None
                    };
                }
            }
        }
        let believed = post.to(&*verifier, NOW);
        // Chance may put back what was there; that is what the provider signed.
        if good.headers == post.headers && good.body == post.body {
            whole += 1;
            continue;
        }
        // A list of signatures may also hold the true one, whole, beside noise. Nothing else is an excuse.
        let header = signed.iter().find(|header| header.contains("signature")).unwrap();
        let text =
            |post: &Post| post.headers.get(*header).map_or(String::new(), |value| format!("{value:?}"));
        let (true_one, now) = (text(&good), text(&post));
        let beside =
            true_one.len() > 44 && now.contains(true_one[true_one.len() - 44..].trim_end_matches('"'));
        let excused = beside && post.body == good.body && good.to(&*verifier, NOW) == believed;
        assert!(believed.is_err() || excused, "{name}: {post:?}");
    }
    assert!(whole < rounds() / 4, "{whole} of them were not changed at all");
}
