//! Whether two requests that carry the same key ask for the same thing.
//!
//! A key names an intent; the fingerprint says what was asked under that name. A retry may spell the request
//! differently (another field order, another multipart boundary, `1.0` for `1`) and must still be the same;
//! a request that asks for something else must never be.
//!
//! ```
//! use semel::intent::fingerprint::{Comparison, Recipe};
//!
//! let recipe = Recipe::default();
//! let charge = |body: &str| {
//!     recipe.request("POST", "/charges").body(Some("application/json"), body.as_bytes()).finish()
//! };
//! let stored = charge(r#"{"amount": 100, "currency": "eur"}"#);
//! assert_eq!(charge(r#"{"currency":"\u0065ur","amount":1e2}"#).compare(&stored), Comparison::Same);
//! assert_eq!(charge(r#"{"amount": 101, "currency": "eur"}"#).compare(&stored), Comparison::Different);
//! ```
//!
//! # What is in it
//!
//! | part | form |
//! |---|---|
//! | method, route | as given |
//! | path values | by name |
//! | query | decoded pairs, sorted by name; equal names keep their order; a broken escape: as sent |
//! | headers | only the chosen ones; values trimmed |
//! | content type | its essence (`application/json`), without parameters: another SDK version may add a charset |
//! | JSON body | sorted keys, decoded strings, exact decimals |
//! | `application/x-www-form-urlencoded` | as the query |
//! | `multipart/form-data` | by its parts, because boundaries are random |
//! | any other body | its bytes |
//!
//! A body that is not what its content type says, or that has no canonical form within the bounds (duplicate
//! keys, too deep, too large), counts as its bytes. Then only a byte-for-byte retry is the same; nothing is
//! merged in silence.
//!
//! # When the rules change
//!
//! A [`Recipe`] has an id, stored with each record. After a deploy that changes the rules, an old record is
//! neither the same nor different: [`Comparison::OtherRecipe`].
//!
//! | module | what it decides |
//! |---|---|
//! | `recipe` | the settings: which headers and fields count |
//! | `request` | the fingerprint of an HTTP request |
//! | `canonical`, `decimal`, `string` | JSON without its spelling |
//! | `pairs`, `multipart` | queries, forms and multipart bodies by their parts |
//! | `media` | content types, and what in them changes how a body is read |
//! | `headers`, `select` | which headers may count, which fields of a body do |
//! | `frame` | parts into a digest |

use std::fmt;

mod canonical;
mod decimal;
mod frame;
mod headers;
mod media;
mod multipart;
mod pairs;
mod recipe;
mod request;
mod select;
mod string;

#[cfg(test)]
mod properties;

pub use canonical::CanonicalError;
pub use headers::HEADERS_MAX;
pub use recipe::{
    CANONICAL_BYTES_MAX, DEPTH_MAX, DEPTH_MAX_CEILING, FingerprintError, Recipe, RecipeBuilder, RecipeError,
};
pub use request::RequestDigest;
pub use select::FIELD_PATHS_MAX;

/// The algorithm's version. It is part of every [`RecipeId`], so records made before a bump replay instead
/// of mismatching. Bump it with any change that gives some request another digest.
pub const VERSION: u32 = 1;

/// What was asked, as 32 bytes, and the rules by which they were made.
///
/// Its debug output shows eight hex digits: enough to tell two apart in a log.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    digest: [u8; 32],
    recipe: RecipeId,
}

/// Which rules made a fingerprint: the algorithm's version and every setting.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecipeId(u64);

/// How a request relates to the record stored under its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// The same request: replay.
    Same,
    /// Another request under the same key: a mistake of the client.
    Different,
    /// The record was made by other rules than today's, so the two cannot be compared. Replay, and count it: to call
    /// it different would turn every retry that spans a deploy into an error.
    OtherRecipe,
}

impl Fingerprint {
    /// The fingerprint a store kept as its two parts.
    ///
    /// ```
    /// use semel::intent::fingerprint::{Fingerprint, Recipe};
    ///
    /// let made = Recipe::default().bytes(b"charge 42");
    /// let read = Fingerprint::from_parts(*made.digest(), made.recipe().as_u64());
    /// assert_eq!(made, read);
    /// ```
    #[must_use]
    pub const fn from_parts(digest: [u8; 32], recipe: u64) -> Self {
        Self { digest, recipe: RecipeId(recipe) }
    }

    /// The SHA-256 digest.
    #[must_use]
    pub const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The rules it was made by.
    #[must_use]
    pub const fn recipe(&self) -> RecipeId {
        self.recipe
    }

    /// Compares today's request (`self`) with the stored one.
    ///
    /// ```
    /// use semel::intent::fingerprint::{Comparison, Recipe};
    ///
    /// let before = Recipe::default();
    /// let after = Recipe::builder().header("x-channel").build()?;
    /// let stored = before.bytes(b"charge 42");
    /// assert_eq!(before.bytes(b"charge 43").compare(&stored), Comparison::Different);
    /// assert_eq!(after.bytes(b"charge 43").compare(&stored), Comparison::OtherRecipe);
    /// # Ok::<(), semel::intent::fingerprint::RecipeError>(())
    /// ```
    #[must_use]
    pub fn compare(&self, stored: &Self) -> Comparison {
        if self.recipe != stored.recipe {
            Comparison::OtherRecipe
        } else if self.digest == stored.digest {
            Comparison::Same
        } else {
            Comparison::Different
        }
    }
}

impl RecipeId {
    /// The id as a store keeps it.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.digest;
        write!(f, "Fingerprint({a:02x}{b:02x}{c:02x}{d:02x})")
    }
}

impl fmt::Debug for RecipeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecipeId({:016x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_shows_eight_digits_and_no_more() {
        let fingerprint = Fingerprint::from_parts([0xab; 32], 7);
        assert_eq!(format!("{fingerprint:?}"), "Fingerprint(abababab)");
        assert_eq!(format!("{:?}", fingerprint.recipe()), "RecipeId(0000000000000007)");
    }

    #[test]
    fn another_recipe_is_neither_same_nor_different() {
        let (a, b) = ([1; 32], [2; 32]);
        let compare =
            |digest, recipe| Fingerprint::from_parts(digest, recipe).compare(&Fingerprint::from_parts(a, 1));
        assert_eq!(compare(a, 1), Comparison::Same);
        assert_eq!(compare(b, 1), Comparison::Different);
        assert_eq!(compare(a, 2), Comparison::OtherRecipe);
        assert_eq!(compare(b, 2), Comparison::OtherRecipe);
    }
}
