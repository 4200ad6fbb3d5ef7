//! What holds for every body and every request, tried at random; and digests that must not move.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::canonical::{self, CanonicalError};
use super::select::Selection;
use super::{DEPTH_MAX, Fingerprint, Recipe};

/// JSON with numbers as `digits * 10^exponent`, so that they can be spelt in many ways.
#[derive(Clone, Debug)]
enum Json {
    Null,
    Bool(bool),
    Number { negative: bool, digits: u64, exponent: i32 },
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

fn json() -> impl Strategy<Value = Json> {
    let text = || prop_oneof![".{0,6}", "[a-c\"\\\\/\u{0}-\u{1f}\u{e9}\u{1f600}]{0,4}"];
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Bool),
        (any::<bool>(), prop_oneof![0..200_u64, any::<u64>()], -30..30_i32)
            .prop_map(|(negative, digits, exponent)| Json::Number { negative, digits, exponent }),
        text().prop_map(Json::Text),
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Json::List),
            prop::collection::btree_map(text(), inner, 0..6)
                .prop_map(|members| Json::Object(members.into_iter().collect())),
        ]
    })
}

/// Writes a value in one of its many spellings.
struct Speller(fastrand::Rng);

impl Speller {
    fn spell(value: &Json, seed: u64) -> String {
        let mut out = String::new();
        Self(fastrand::Rng::with_seed(seed)).value(value, &mut out);
        out
    }

    fn value(&mut self, value: &Json, out: &mut String) {
        self.space(out);
        match value {
            Json::Null => out.push_str("null"),
            Json::Bool(bool) => write!(out, "{bool}").unwrap(),
            Json::Number { negative, digits, exponent } => self.number(*negative, *digits, *exponent, out),
            Json::Text(text) => self.text(text, out),
            Json::List(items) => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    out.push_str(if i == 0 { "" } else { "," });
                    self.value(item, out);
                }
                self.space(out);
                out.push(']');
            }
            Json::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                self.0.shuffle(&mut members);
                out.push('{');
                for (i, (key, value)) in members.into_iter().enumerate() {
                    out.push_str(if i == 0 { "" } else { "," });
                    self.space(out);
                    self.text(key, out);
                    self.space(out);
                    out.push(':');
                    self.value(value, out);
                }
                self.space(out);
                out.push('}');
            }
        }
        self.space(out);
    }

    fn space(&mut self, out: &mut String) {
        for _ in 0..self.0.usize(..3) {
            out.push(*self.0.choice(&[' ', '\t', '\r', '\n']).unwrap());
        }
    }

    /// Moves the point and adds zeros; the power of ten makes up for both.
    fn number(&mut self, negative: bool, digits: u64, exponent: i32, out: &mut String) {
        if negative && (digits != 0 || self.0.bool()) {
            out.push('-');
        }
        let mut text = digits.to_string();
        let zeros = self.0.usize(..3);
        text.push_str(&"0".repeat(zeros));
        let places = self.0.usize(..=text.len());
        let (whole, fraction) = text.split_at(text.len() - places);
        let whole = whole.trim_start_matches('0');
        out.push_str(if whole.is_empty() { "0" } else { whole });
        if !fraction.is_empty() {
            write!(out, ".{fraction}").unwrap();
        }
        let power = exponent - zeros as i32 + places as i32;
        if power != 0 || self.0.bool() {
            out.push(if self.0.bool() { 'e' } else { 'E' });
            out.push_str(if power < 0 {
                "-"
            } else if self.0.bool() {
                "+"
            } else {
                ""
            });
            write!(out, "{}{}", "0".repeat(self.0.usize(..2)), power.unsigned_abs()).unwrap();
        }
    }

    fn text(&mut self, text: &str, out: &mut String) {
        out.push('"');
        for char in text.chars() {
            let must = matches!(char, '"' | '\\' | '\0'..='\u{1f}');
            match char {
                '"' | '\\' | '/' if self.0.bool() => write!(out, "\\{char}").unwrap(),
                '\n' if self.0.bool() => out.push_str("\\n"),
                _ if must || self.0.u8(..4) == 0 => {
                    for unit in char.encode_utf16(&mut [0; 2]) {
                        if self.0.bool() {
                            write!(out, "\\u{unit:04x}")
                        } else {
                            write!(out, "\\u{unit:04X}")
                        }
                        .unwrap();
                    }
                }
                _ => out.push(char),
            }
        }
        out.push('"');
    }
}

/// Changes the leaf at `index`, counting down to it, into another value of its kind. An empty list or object
/// is a leaf too.
fn change_leaf(value: &mut Json, index: &mut usize) -> bool {
    let children: Vec<&mut Json> = match value {
        Json::List(items) if !items.is_empty() => items.iter_mut().collect(),
        Json::Object(members) if !members.is_empty() => members.iter_mut().map(|(_, value)| value).collect(),
        _ if *index > 0 => {
            *index -= 1;
            return false;
        }
        leaf => {
            *leaf = match leaf {
                Json::Null => Json::Bool(false),
                Json::Bool(bool) => Json::Bool(!*bool),
                Json::Number { negative, digits, exponent } => {
                    Json::Number { negative: *negative, digits: *digits ^ 1, exponent: *exponent }
                }
                Json::Text(text) => Json::Text(format!("{text}\0")),
                Json::List(_) => Json::Object(Vec::new()),
                Json::Object(_) => Json::List(Vec::new()),
            };
            return true;
        }
    };
    children.into_iter().any(|child| change_leaf(child, index))
}

fn post(body: &str) -> Fingerprint {
    Recipe::default().request("POST", "/").body(Some("application/json"), body.as_bytes()).finish()
}

/// The text with a few bytes overwritten, removed or doubled: nearly JSON, which random bytes are not.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 0..4);
    let byte = prop::sample::select(br#"{}[]",:\/ueE+-.019 ntf"#.to_vec());
    (json(), any::<u64>(), damage, byte).prop_map(|(value, seed, damage, likely)| {
        let mut text = Speller::spell(&value, seed).into_bytes();
        for (at, byte, kind) in damage {
            let at = at.index(text.len() + 1);
            match kind {
                0 if at < text.len() => text[at] = byte,
                1 if at < text.len() => drop(text.remove(at)),
                2 => text.insert(at, likely),
                _ => text.truncate(at),
            }
        }
        text
    })
}

/// We canonicalise exactly what `serde_json` accepts as UTF-8 text, except for what has no exact form here:
/// duplicate keys, nesting beyond the bound, half surrogate pairs, exponents beyond 64 bits. `IgnoredAny` checks
/// the grammar alone and has no opinion on these four.
fn agrees_with_serde_json(text: &[u8]) {
    let accepted = std::str::from_utf8(text)
        .is_ok_and(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok());
    match canonical::canonicalise(text, &Selection::default(), DEPTH_MAX) {
        Ok(_) => assert!(accepted, "only we accept {text:?}"),
        Err(CanonicalError::Syntax) => assert!(!accepted, "only serde_json accepts {text:?}"),
        Err(
            CanonicalError::DuplicateKey
            | CanonicalError::Depth
            | CanonicalError::Surrogate
            | CanonicalError::Exponent,
        ) => {}
    }
}

proptest! {
    #[test]
    fn spelling_never_changes_the_fingerprint(value in json(), a: u64, b: u64) {
        let (a, b) = (Speller::spell(&value, a), Speller::spell(&value, b));
        prop_assert!(canonical::canonicalise(a.as_bytes(), &Selection::default(), DEPTH_MAX).is_ok(), "{}", a);
        prop_assert_eq!(post(&a), post(&b), "{} and {}", a, b);
    }

    #[test]
    fn changing_one_leaf_always_changes_the_fingerprint(value in json(), pick: prop::sample::Index, seed: u64) {
        let mut leaves = 0;
        while change_leaf(&mut value.clone(), &mut { leaves }) {
            leaves += 1;
        }
        let mut other = value.clone();
        prop_assert!(change_leaf(&mut other, &mut pick.index(leaves)));
        prop_assert_ne!(post(&Speller::spell(&value, seed)), post(&Speller::spell(&other, seed)));
    }

    #[test]
    fn damaged_json_is_judged_as_serde_json_does(text in damaged()) {
        agrees_with_serde_json(&text);
    }

    #[test]
    fn any_bytes_under_any_content_type_have_a_fingerprint(
        bytes: Vec<u8>,
        content_type in prop::option::of(prop_oneof![
            Just("application/json".to_owned()),
            Just("application/x-www-form-urlencoded".to_owned()),
            "multipart/form-data; ?boundary=.{0,3}",
            ".*",
        ]),
        query in ".*",
    ) {
        agrees_with_serde_json(&bytes);
        let recipe = Recipe::builder().exclude_field("/a").include_field("/*/b").build().unwrap();
        let send = || recipe.request("", "").query(&query).body(content_type.as_deref(), &bytes).finish();
        prop_assert_eq!(send(), send());
    }

    /// One text cut into parts at other places is another request.
    #[test]
    fn text_moved_from_one_part_to_the_next_changes_the_fingerprint(
        text in "[a-c]{1,8}",
        a in prop::array::uniform7(any::<prop::sample::Index>()),
        b in prop::array::uniform7(any::<prop::sample::Index>()),
    ) {
        let recipe = Recipe::builder().header("x-h").build().unwrap();
        let cut = |cuts: [prop::sample::Index; 7]| {
            let mut cuts = cuts.map(|cut| cut.index(text.len() + 1));
            cuts.sort_unstable();
            cuts
        };
        let send = |[route, name, value, query, header, content_type, body]: [usize; 7]| {
            recipe
                .request(&text[..route], &text[route..name])
                .path_value(&text[name..value], &text[value..query])
                .query(&text[query..header])
                .header("x-h", &text[header..content_type])
                .body(Some(&text[content_type..body]), &text.as_bytes()[body..])
                .finish()
        };
        let (a, b) = (cut(a), cut(b));
        prop_assert_eq!(send(a) == send(b), a == b);
    }
}

/// These digests are in people's stores. If one of them moves, retries across the deploy would mismatch:
/// either the change is a mistake, or `VERSION` must be bumped, and only then the digests here. They were
/// computed by a second program, written from the description of the format, not copied from this one's output.
#[test]
fn golden_digests_have_not_moved() {
    let hex = |fingerprint: Fingerprint| {
        fingerprint.digest().iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
    };
    let recipe = Recipe::default();
    let request = |content_type, bytes: &[u8]| {
        let request = recipe.request("POST", "/c/{id}/charges").path_value("id", "42").query("b=2&a=1");
        hex(request.body(Some(content_type), bytes).finish())
    };
    let body = br#"{"b":[1.50,-0,"\u00e9"],"a":{"z":null,"y":true}}"#;
    let part = "Content-Disposition: form-data; name=f; filename=x\r\nContent-Type: text/csv\r\n\r\n1,2";
    let form = format!("--q\r\n{part}\r\n--q--");
    let chosen = Recipe::builder().header("x-a").include_field("/a").exclude_field("/b/*").build().unwrap();
    for (name, actual, golden) in [
        (
            "json",
            request("application/json", body),
            "7f8a96d9e766532be4ade1dede51c8cf987b84ed0ebacb69b665dbbdfec71f7a",
        ),
        (
            "raw",
            request("text/plain", body),
            "2f405d5e2810774f6dd5f20ecfbfda580150cceb7b3dd928027e15d1b0476c77",
        ),
        (
            "form",
            request("application/x-www-form-urlencoded", b"y=1&x=%20"),
            "b944ef16ec0fa602ba8e6ea117da38bb1a5fd62b4c08f2233742ed25b7772b51",
        ),
        (
            "multipart",
            request("multipart/form-data; boundary=q", form.as_bytes()),
            "1dca2f0b2dfdea647ecd0d3c149a9c960b93182441691275488ead49eb14d60c",
        ),
        (
            "bare",
            hex(recipe.request("GET", "/").finish()),
            "90f09554ffd8221ea1735bde82bc3416d4a182c09db843debcc581b54f37a0a5",
        ),
        (
            "header",
            hex(chosen.request("GET", "/").header("x-a", "1").finish()),
            "ef6e8502160fdbc79b6463272fa8775ec5548f132c750354767c5f05a0808a28",
        ),
        (
            "value",
            hex(recipe.value(&[1, 2]).unwrap()),
            "250becd66952df5b46404190bfa03465a5996a8df181909bf3d7d7a2f0f53d84",
        ),
        ("bytes", hex(recipe.bytes(b"")), "da4396bc46b8a3b02f456bada87cc86cadded9a5d9aedd5c1e49a637c9f8c81c"),
        ("recipe", format!("{:016x}", recipe.id().as_u64()), "a4343a46420c7534"),
        ("chosen", format!("{:016x}", chosen.id().as_u64()), "4d9eeed275218b53"),
    ] {
        assert_eq!(actual, golden, "{name}");
    }
}
