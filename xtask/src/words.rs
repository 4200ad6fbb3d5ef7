//! The words of the field: one name for one public type, and none of the words that made the code hard to read.

/// Words that say nothing to a stranger. A plain word stands for each: see docs/ARCHITECTURE.md, the glossary.
const FORBIDDEN: &[&str] = &[
    "told",
    "heard",
    "whoever",
    "nobody",
    "manieth",
    "bury",
    "buries",
    "buried",
    "burial",
    "desk",
    "farewell",
    "mischief",
    "doomed",
    "nameless",
    "greeted",
    "hereafter",
    "thereof",
];

/// Where one of them may stand, with the reason.
const ALLOWED: &[(&str, &str, &str)] = &[
    ("xtask/src/words.rs", "", "the list itself"),
    ("crates/semel/src/inbox/dead_letter/letter.rs", "nameless", "part of the hash of stored ids"),
    ("crates/semel-cli/src/demo/report.rs", "told", "a key of `semel demo --json`"),
    ("crates/semel-cli/tests/it/demo.rs", "told", "the same key"),
];

/// Every forbidden word of a text, with its line.
pub(crate) fn forbidden(name: &str, text: &str) -> Vec<String> {
    let allowed = |word: &str| {
        ALLOWED.iter().any(|(file, only, _)| *file == name && (only.is_empty() || *only == word))
    };
    let words = |line: &str| -> Vec<String> {
        let parts = line.split(|c: char| !c.is_ascii_alphanumeric());
        parts.map(str::to_ascii_lowercase).filter(|word| FORBIDDEN.contains(&word.as_str())).collect()
    };
    let found = text
        .lines()
        .enumerate()
        .flat_map(|(number, line)| words(line).into_iter().map(move |word| (number + 1, word)));
    found
        .filter(|(_, word)| !allowed(word))
        .map(|(number, word)| format!("{name}:{number}: `{word}` is not a word of the field: say it plainly"))
        .collect()
}

/// Public types of a file: name and line.
pub(crate) fn public_types(text: &str) -> Vec<(String, usize)> {
    let declared = |line: &str| {
        let rest = line.strip_prefix("pub ")?;
        let rest = ["struct ", "enum ", "trait ", "type "].iter().find_map(|kind| rest.strip_prefix(kind))?;
        let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
        Some(rest[..end].to_owned())
    };
    let lines = text.lines().enumerate();
    lines.filter_map(|(number, line)| Some((declared(line)?, number + 1))).collect()
}

/// Names that two public types share. `declared`: name, file and line of each.
pub(crate) fn shared(mut declared: Vec<(String, String)>) -> Vec<String> {
    declared.sort();
    let same = declared.chunk_by(|one, other| one.0 == other.0).filter(|same| same.len() > 1);
    same.map(|same| {
        let places: Vec<&str> = same.iter().map(|(_, place)| place.as_str()).collect();
        format!("{}: the public name `{}` is used more than once", places.join(", "), same[0].0)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_word_is_found_as_a_word_and_in_an_identifier() {
        let wrong = forbidden("a.rs", "fine\n// Nobody knows.\nlet who_told = toldness;\n");
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(
            wrong[0].starts_with("a.rs:2: `nobody`") && wrong[1].starts_with("a.rs:3: `told`"),
            "{wrong:?}"
        );
    }

    #[test]
    fn exceptions_are_few() {
        assert!(ALLOWED.len() <= 20, "{} exceptions, at most 20", ALLOWED.len());
    }

    #[test]
    fn two_public_types_of_one_name_are_named() {
        let text =
            "pub struct Stop(u8);\npub(crate) struct Hidden;\n    pub struct Inner;\npub enum Effect<T> {\n";
        assert_eq!(public_types(text), [("Stop".to_owned(), 1), ("Effect".to_owned(), 4)]);
        let named = |name: &str, place: &str| (name.to_owned(), place.to_owned());
        let wrong = shared(vec![named("Stop", "b.rs:2"), named("Once", "a.rs:9"), named("Stop", "a.rs:1")]);
        assert_eq!(wrong, ["a.rs:1, b.rs:2: the public name `Stop` is used more than once"]);
    }
}
