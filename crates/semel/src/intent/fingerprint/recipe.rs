//! The settings that decide a fingerprint.

use serde::Serialize;

use super::canonical::{self, CanonicalError};
use super::frame::{Frame, Tag};
use super::headers::{self, HEADERS_MAX};
use super::request::RequestDigest;
use super::select::{FIELD_PATHS_MAX, Selection};
use super::{Fingerprint, RecipeId, VERSION};

/// How deep a JSON body may be nested, unless the recipe says otherwise.
pub const DEPTH_MAX: usize = 64;

/// The deepest that a recipe may allow. Bodies are walked by recursion; this much fits a small stack
/// (256 KiB, tested) even in a debug build.
pub const DEPTH_MAX_CEILING: usize = 128;

/// How large a JSON or form body may be to be put in canonical form, unless the recipe says otherwise.
pub const CANONICAL_BYTES_MAX: usize = 1024 * 1024;

/// The rules by which fingerprints are made. The default suits most services.
///
/// ```
/// use semel::intent::fingerprint::Recipe;
///
/// let recipe = Recipe::builder().header("x-channel").exclude_field("/meta/sent_at").build()?;
/// let send = |sent_at: u32| {
///     let body = format!(r#"{{"amount":100,"meta":{{"sent_at":{sent_at}}}}}"#);
///     recipe.request("POST", "/charges").body(Some("application/json"), body.as_bytes()).finish()
/// };
/// assert_eq!(send(1), send(2));
/// # Ok::<(), semel::intent::fingerprint::RecipeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    pub(super) headers: Vec<String>,
    pub(super) selection: Selection,
    pub(super) depth_max: usize,
    pub(super) canonical_bytes_max: usize,
    pub(super) query_order_matters: bool,
    id: RecipeId,
}

/// Collects the settings of a [`Recipe`]; the order of the calls does not matter.
#[derive(Clone, Debug)]
#[must_use]
pub struct RecipeBuilder {
    headers: Vec<String>,
    included: Vec<String>,
    excluded: Vec<String>,
    depth_max: usize,
    canonical_bytes_max: usize,
    query_order_matters: bool,
}

/// Invalid settings of a recipe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// The header changes between a request and its retry.
    #[error("header `{name}` changes between a request and its retry; leave it out of the fingerprint")]
    VolatileHeader {
        /// The header, in lower case.
        name: String,
    },
    /// An invalid header name.
    #[error("`{name}` is not a valid header name")]
    HeaderName {
        /// The name as given.
        name: String,
    },
    /// More than [`HEADERS_MAX`] headers.
    #[error("{count} headers are chosen; at most {HEADERS_MAX} are allowed")]
    TooManyHeaders {
        /// How many were chosen.
        count: usize,
    },
    /// Not a path to a field.
    #[error("field path `{path}` {why}; write it as `/meta/sent_at` or `/items/*/sent_at`")]
    FieldPath {
        /// The path as given.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// More than [`FIELD_PATHS_MAX`] paths included, or as many excluded.
    #[error("{count} field paths are included or excluded; at most {FIELD_PATHS_MAX} are allowed")]
    TooManyFieldPaths {
        /// How many there are.
        count: usize,
    },
    /// Deeper than [`DEPTH_MAX_CEILING`].
    #[error("depth_max is {depth_max}; at most {DEPTH_MAX_CEILING} is allowed")]
    DepthMax {
        /// The depth as given.
        depth_max: usize,
    },
}

/// Why a value has no fingerprint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FingerprintError {
    /// It cannot be written as JSON.
    #[error("the value cannot be written as JSON")]
    Serialize(#[source] serde_json::Error),
    /// It can, but its JSON has no canonical form.
    #[error("the value has no fingerprint: {0}")]
    NotCanonical(CanonicalError),
}

impl Recipe {
    /// Whether any header counts.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    pub(crate) fn chooses_headers(&self) -> bool {
        !self.headers.is_empty()
    }

    /// A builder with the defaults.
    pub fn builder() -> RecipeBuilder {
        RecipeBuilder {
            headers: Vec::new(),
            included: Vec::new(),
            excluded: Vec::new(),
            depth_max: DEPTH_MAX,
            canonical_bytes_max: CANONICAL_BYTES_MAX,
            query_order_matters: false,
        }
    }

    /// The id stored with each record: made of [`VERSION`] and every setting.
    #[must_use]
    pub fn id(&self) -> RecipeId {
        self.id
    }

    /// Begins the fingerprint of an HTTP request.
    ///
    /// `route` is the template (`/orders/{id}`), or any name of the operation that a deploy does not change;
    /// the values go to [`RequestDigest::path_value`].
    pub fn request<'a>(&'a self, method: &'a str, route: &'a str) -> RequestDigest<'a> {
        RequestDigest::new(self, method, route)
    }

    /// The fingerprint of a value, such as the arguments of a function. Field paths apply to its JSON.
    ///
    /// Unlike a body, a value that has no canonical form is an error: its own JSON may differ from one process
    /// to the next (the order of a `HashMap`), so it must fail at the first call and not at the first retry.
    /// For the same reason its size is not bounded. Floats that are not finite are `null` in JSON, hence equal.
    ///
    /// ```
    /// use semel::intent::fingerprint::Recipe;
    /// use std::collections::HashMap;
    ///
    /// let recipe = Recipe::default();
    /// let a = recipe.value(&HashMap::from([("from", 1), ("to", 2)]))?;
    /// let b = recipe.value(&HashMap::from([("to", 2), ("from", 1)]))?;
    /// assert_eq!(a, b);
    /// # Ok::<(), semel::intent::fingerprint::FingerprintError>(())
    /// ```
    ///
    /// # Errors
    /// If the value does not serialise, or its JSON has duplicate keys or is too deep.
    pub fn value<T: Serialize + ?Sized>(&self, value: &T) -> Result<Fingerprint, FingerprintError> {
        let text = serde_json::to_vec(value).map_err(FingerprintError::Serialize)?;
        let mut frame = Frame::new("semel value");
        self.json(&text, &mut frame).map_err(FingerprintError::NotCanonical)?;
        Ok(self.stamp(frame))
    }

    /// The fingerprint of bytes as they are.
    ///
    /// ```
    /// # use semel::intent::fingerprint::Recipe;
    /// let recipe = Recipe::default();
    /// assert_ne!(recipe.bytes(b"{}"), recipe.bytes(b"{ }"));
    /// ```
    #[must_use]
    pub fn bytes(&self, bytes: &[u8]) -> Fingerprint {
        let mut frame = Frame::new("semel bytes");
        frame.part(Tag::BodyRaw, bytes);
        self.stamp(frame)
    }

    /// Adds the canonical form of `text`, or nothing when there is none.
    pub(super) fn json(&self, text: &[u8], frame: &mut Frame) -> Result<(), CanonicalError> {
        let form = canonical::canonicalise(text, &self.selection, self.depth_max)?;
        if self.selection.chooses() && !form.chosen {
            // None of the fields that count is there: a body of another shape, or a misspelt path. Without this the
            // recipe would make all such bodies the same.
            let all = canonical::canonicalise(text, &self.selection.without_choice(), self.depth_max)?;
            frame.part(Tag::BodyJsonUnchosen, &all.bytes);
        } else {
            frame.part(Tag::BodyJson, &form.bytes);
        }
        Ok(())
    }

    pub(super) fn stamp(&self, frame: Frame) -> Fingerprint {
        Fingerprint { digest: frame.finish(), recipe: self.id }
    }

    fn assemble(headers: Vec<String>, selection: Selection, settings: RecipeBuilder) -> Self {
        let mut recipe = Self {
            headers,
            selection,
            depth_max: settings.depth_max,
            canonical_bytes_max: settings.canonical_bytes_max,
            query_order_matters: settings.query_order_matters,
            id: RecipeId(0),
        };
        recipe.id = recipe.id_under(VERSION);
        recipe
    }

    /// The id these settings have under a version of the algorithm.
    fn id_under(&self, version: u32) -> RecipeId {
        let mut frame = Frame::versioned("semel recipe", version);
        for header in &self.headers {
            frame.part(Tag::HeaderName, header.as_bytes());
        }
        self.selection.describe(&mut frame);
        for number in [self.depth_max, self.canonical_bytes_max, usize::from(self.query_order_matters)] {
            frame.part(Tag::Setting, &(number as u64).to_le_bytes());
        }
        let [a, b, c, d, e, f, g, h, ..] = frame.finish();
        RecipeId(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }
}

impl Default for Recipe {
    fn default() -> Self {
        Self::assemble(Vec::new(), Selection::default(), Self::builder())
    }
}

impl RecipeBuilder {
    /// Chooses a header whose values count. Upper and lower case are the same.
    pub fn header(mut self, name: impl Into<String>) -> Self {
        self.headers.push(name.into());
        self
    }

    /// Leaves a field of JSON bodies out, as if the client had not sent it: `/meta/sent_at`, or
    /// `/items/*/sent_at` for each element. It wins over [`include_field`](Self::include_field).
    ///
    /// A body without a canonical form is compared as its bytes, with all its fields.
    pub fn exclude_field(mut self, path: impl Into<String>) -> Self {
        self.excluded.push(path.into());
        self
    }

    /// Lets only the included fields of JSON bodies count. A body that has none of them counts in full:
    /// otherwise all such bodies would be the same.
    pub fn include_field(mut self, path: impl Into<String>) -> Self {
        self.included.push(path.into());
        self
    }

    /// How deep arrays and objects may be nested in a body that is put in canonical form ([`DEPTH_MAX`]).
    pub fn depth_max(mut self, depth_max: usize) -> Self {
        self.depth_max = depth_max;
        self
    }

    /// How large a JSON or form body may be that is put in canonical form ([`CANONICAL_BYTES_MAX`]); a larger
    /// one counts as its bytes. Multipart bodies are read whatever their size: that takes no copy.
    pub fn canonical_bytes_max(mut self, canonical_bytes_max: usize) -> Self {
        self.canonical_bytes_max = canonical_bytes_max;
        self
    }

    /// Whether `?a=1&b=2` and `?b=2&a=1` are two requests. By default they are one. Form bodies stay sorted.
    pub fn query_order_matters(mut self, query_order_matters: bool) -> Self {
        self.query_order_matters = query_order_matters;
        self
    }

    /// The recipe.
    ///
    /// # Errors
    /// If a header is volatile or has an invalid name, a path is malformed, or a bound is exceeded.
    pub fn build(mut self) -> Result<Recipe, RecipeError> {
        let headers = headers::choose(std::mem::take(&mut self.headers))?;
        let selection = Selection::new(&self.included, &self.excluded)?;
        if self.depth_max > DEPTH_MAX_CEILING {
            return Err(RecipeError::DepthMax { depth_max: self.depth_max });
        }
        Ok(Recipe::assemble(headers, selection, self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(builder: RecipeBuilder) -> Recipe {
        builder.build().unwrap()
    }

    #[test]
    fn the_default_is_what_the_builder_begins_with() {
        assert_eq!(Recipe::default(), build(Recipe::builder()));
    }

    #[test]
    fn headers_count_where_they_are_chosen() {
        assert!(!Recipe::default().chooses_headers());
        assert!(build(Recipe::builder().header("accept-language")).chooses_headers());
    }

    #[test]
    fn the_order_of_calls_does_not_change_the_id() {
        let one = Recipe::builder()
            .header("x-b")
            .header("X-A")
            .exclude_field("/t")
            .exclude_field("/s")
            .depth_max(9);
        let other = Recipe::builder()
            .depth_max(9)
            .exclude_field("/s")
            .header("x-a")
            .exclude_field("/t")
            .header("x-b")
            .header("X-B");
        assert_eq!(build(one), build(other));
    }

    #[test]
    fn any_other_setting_is_another_recipe() {
        let recipes = [
            Recipe::builder(),
            Recipe::builder().header("x-a"),
            Recipe::builder().header("x-b"),
            Recipe::builder().header("x-a").header("x-b"),
            Recipe::builder().header("included"),
            Recipe::builder().include_field("/a"),
            Recipe::builder().exclude_field("/a"),
            Recipe::builder().include_field("/a").exclude_field("/a"),
            Recipe::builder().include_field("/a").include_field("/b"),
            Recipe::builder().include_field("/a/b"),
            Recipe::builder().include_field("/a").exclude_field("/b"),
            Recipe::builder().depth_max(DEPTH_MAX - 1),
            Recipe::builder().depth_max(DEPTH_MAX_CEILING),
            Recipe::builder().canonical_bytes_max(CANONICAL_BYTES_MAX + 1),
            Recipe::builder().canonical_bytes_max(DEPTH_MAX),
            Recipe::builder().query_order_matters(true),
        ]
        .map(build);
        for (i, a) in recipes.iter().enumerate() {
            assert_eq!(a.id(), a.clone().id());
            assert_ne!(a.id(), a.id_under(VERSION + 1), "{a:?}");
            for b in &recipes[i + 1..] {
                assert_ne!(a.id(), b.id(), "{a:?} and {b:?}");
            }
        }
    }

    #[test]
    fn a_depth_beyond_the_ceiling_is_refused() {
        assert!(Recipe::builder().depth_max(DEPTH_MAX_CEILING).build().is_ok());
        let error = Recipe::builder().depth_max(DEPTH_MAX_CEILING + 1).build();
        assert_eq!(error, Err(RecipeError::DepthMax { depth_max: DEPTH_MAX_CEILING + 1 }));
    }

    #[test]
    fn a_value_is_what_it_serialises_to_and_nothing_else() {
        #[derive(Serialize)]
        struct Charge {
            amount: u64,
            currency: &'static str,
        }
        let recipe = Recipe::default();
        let charge = recipe.value(&Charge { amount: 100, currency: "eur" }).unwrap();
        assert_eq!(charge, recipe.value(&serde_json::json!({"currency": "eur", "amount": 100.0})).unwrap());
        assert_ne!(charge, recipe.value(&Charge { amount: 101, currency: "eur" }).unwrap());
        assert_ne!(recipe.value(&u64::MAX).unwrap(), recipe.value(&(u64::MAX - 1)).unwrap());
        assert_ne!(recipe.value(&u128::MAX).unwrap(), recipe.value(&(u128::MAX - 1)).unwrap());
        assert_ne!(recipe.value("").unwrap(), recipe.value(&()).unwrap());
        assert_ne!(recipe.value("a").unwrap(), recipe.bytes(b"a"));
        assert_ne!(recipe.value(&None::<u8>).unwrap(), recipe.value(&[0_u8; 0]).unwrap());
    }

    #[test]
    fn a_value_without_a_canonical_form_is_an_error() {
        struct Twice;
        impl Serialize for Twice {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map([("a", 1), ("a", 2)])
            }
        }
        let recipe = build(Recipe::builder().depth_max(1).canonical_bytes_max(0));
        let refusal = |result| match result {
            Err(FingerprintError::NotCanonical(refusal)) => Some(refusal),
            _ => None,
        };
        assert_eq!(refusal(recipe.value(&Twice)), Some(CanonicalError::DuplicateKey));
        assert_eq!(refusal(recipe.value(&[[1]])), Some(CanonicalError::Depth));
        assert!(recipe.value(&[1]).is_ok(), "size does not bound a value");
        let keyed_by_list = std::collections::HashMap::from([(vec![1], 1)]);
        assert!(matches!(recipe.value(&keyed_by_list), Err(FingerprintError::Serialize(_))));
    }

    #[test]
    fn fields_that_were_not_sent_do_not_make_all_values_equal() {
        let recipe = build(Recipe::builder().include_field("/order/amount").exclude_field("/at"));
        let value =
            |text: &str| recipe.value(&serde_json::from_str::<serde_json::Value>(text).unwrap()).unwrap();
        assert_eq!(value(r#"{"order":{"amount":1},"x":1}"#), value(r#"{"order":{"amount":1,"y":2}}"#));
        assert_ne!(value(r#"{"order":{"amount":1}}"#), value(r#"{"order":{"amount":2}}"#));
        assert_ne!(value(r#"{"amount":1}"#), value(r#"{"amount":2}"#));
        assert_ne!(value(r#"{"order":1}"#), value(r#"{"order":2}"#));
        assert_eq!(value(r#"{"amount":1,"at":1}"#), value(r#"{"amount":1,"at":2}"#));
    }
}
