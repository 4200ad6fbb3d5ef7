//! A minimised history kept as a file: a defect that is known, or a regression that must stay mended.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::play::{Played, play};
use crate::world::World;

/// A history in `tests/known/`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Known<P> {
    /// What it shows, in a sentence.
    pub shows: String,
    /// The law it breaks or broke.
    pub law: String,
    /// The seed: jitter comes from it.
    pub seed: u64,
    /// The plan, minimised.
    pub plan: P,
}

/// Where the files are.
pub fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/known").join(format!("{name}.json"))
}

/// Reads and plays the history `name`. Returns the law it is about, and what it came to.
///
/// # Panics
/// When the file cannot be read or does not fit the world.
pub fn replay<W: World>(name: &str) -> (String, Played) {
    let path = file(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let known: Known<W::Plan> =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let played = play::<W>(known.seed, &known.plan, None);
    (known.law, played)
}

/// The history `name` shows a defect that today's code has. When this fails, the defect is mended: turn the test
/// round with [`assert_mended`].
///
/// # Panics
/// When the history breaks no law, or another one.
pub fn assert_known_defect<W: World>(name: &str) {
    let (law, played) = replay::<W>(name);
    match &played.verdict {
        Err(violation) => assert_eq!(violation.law, law, "{violation}"),
        Ok(()) => panic!("{name} breaks no law any more: if the defect is mended, say assert_mended here"),
    }
}

/// The history `name` showed a defect that is mended.
///
/// # Panics
/// When it breaks a law again.
pub fn assert_mended<W: World>(name: &str) {
    let (_, played) = replay::<W>(name);
    if let Err(violation) = &played.verdict {
        panic!("{name} is back: {violation}\n{}", played.trace.join("\n"));
    }
}
