//! The fingerprint of an HTTP request.

use super::frame::{Frame, Tag};
use super::media::{self, Reading};
use super::{Fingerprint, Recipe, multipart, pairs};

/// Collects a request's parts; made by [`Recipe::request`]. The order of the calls does not matter, except
/// between values of one header.
///
/// ```
/// use semel::intent::fingerprint::Recipe;
///
/// let recipe = Recipe::builder().header("x-channel").build()?;
/// let fingerprint = recipe
///     .request("POST", "/customers/{customer}/charges")
///     .path_value("customer", "c-42")
///     .query("dry_run=false")
///     .header("X-Channel", "web")
///     .header("User-Agent", "left out: not chosen")
///     .body(Some("application/json"), br#"{"amount":100}"#)
///     .finish();
/// # let _ = fingerprint;
/// # Ok::<(), semel::intent::fingerprint::RecipeError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RequestDigest<'a> {
    recipe: &'a Recipe,
    method: &'a str,
    route: &'a str,
    /// The first one is stored inline: mostly there is no other.
    path_value: Option<(&'a str, &'a str)>,
    path_values: Vec<(&'a str, &'a str)>,
    query: &'a str,
    headers: Vec<(&'a str, &'a [u8])>,
    body: Option<Body<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct Body<'a> {
    content_type: Option<&'a str>,
    bytes: &'a [u8],
}

impl<'a> RequestDigest<'a> {
    pub(super) fn new(recipe: &'a Recipe, method: &'a str, route: &'a str) -> Self {
        let (path_values, headers) = (Vec::new(), Vec::new());
        Self { recipe, method, route, path_value: None, path_values, query: "", headers, body: None }
    }

    /// The value of a variable in the route.
    pub fn path_value(mut self, name: &'a str, value: &'a str) -> Self {
        match self.path_value {
            None => self.path_value = Some((name, value)),
            Some(_) => self.path_values.push((name, value)),
        }
        self
    }

    /// The query as sent, without its question mark. No query and an empty one are the same.
    pub fn query(mut self, raw_query: &'a str) -> Self {
        self.query = raw_query;
        self
    }

    /// A header. It counts if the recipe chose it, so an adapter may pass all of them.
    ///
    /// A header sent twice is its two values in their order; a missing one and an empty one differ.
    pub fn header(mut self, name: &str, value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        let recipe = self.recipe;
        if let Some(chosen) = recipe.headers.iter().find(|chosen| chosen.eq_ignore_ascii_case(name)) {
            self.headers.push((chosen, value.as_ref().trim_ascii()));
        }
        self
    }

    /// The body and the value of `content-type`. An empty body and none at all differ: leave the call out for
    /// a request that has none.
    pub fn body(mut self, content_type: Option<&'a str>, bytes: &'a [u8]) -> Self {
        self.body = Some(Body { content_type, bytes });
        self
    }

    /// The fingerprint.
    #[must_use]
    pub fn finish(mut self) -> Fingerprint {
        let mut frame = Frame::new("semel request");
        frame.part(Tag::Method, self.method.as_bytes());
        frame.part(Tag::Route, self.route.as_bytes());

        if !self.path_values.is_empty() {
            // Back to the front: values of one name keep their order.
            let first = self.path_value.take();
            self.path_values.splice(..0, first);
            self.path_values.sort_by_key(|&(name, _)| name);
        }
        for (name, value) in self.path_value.iter().chain(&self.path_values) {
            frame.part(Tag::PathName, name.as_bytes());
            frame.part(Tag::PathValue, value.as_bytes());
        }
        describe_query(self.query, self.recipe.query_order_matters, &mut frame);

        // Stable, so that the values of one header keep their order.
        self.headers.sort_by_key(|&(name, _)| name);
        for (name, value) in &self.headers {
            frame.part(Tag::HeaderName, name.as_bytes());
            frame.part(Tag::HeaderValue, value);
        }
        if let Some(body) = self.body {
            describe_body(body, self.recipe, &mut frame);
        }
        self.recipe.stamp(frame)
    }
}

fn describe_query(query: &str, order_matters: bool, frame: &mut Frame) {
    if query.is_empty() {
        return;
    }
    match pairs::decode(query.as_bytes()) {
        Some(mut pairs) => {
            if !order_matters {
                pairs::sort(&mut pairs);
            }
            pairs::describe(&pairs, Tag::QueryName, Tag::QueryValue, frame);
        }
        None => frame.part(Tag::QueryRaw, query.as_bytes()),
    }
}

/// A reading that fails adds nothing to the frame, so that the bytes can stand in for it.
fn describe_body(body: Body<'_>, recipe: &Recipe, frame: &mut Frame) {
    let reading = body.content_type.map_or(Reading::Raw, |content_type| {
        let essence = media::essence(content_type);
        frame.part(Tag::ContentType, essence.as_bytes());
        media::reading(content_type, &essence)
    });
    let within_bounds = body.bytes.len() <= recipe.canonical_bytes_max;
    let read = match reading {
        Reading::Json if within_bounds => recipe.json(body.bytes, frame).is_ok(),
        Reading::Form if within_bounds => pairs::decode(body.bytes).is_some_and(|mut pairs| {
            pairs::sort(&mut pairs);
            frame.part(Tag::BodyForm, &[]);
            pairs::describe(&pairs, Tag::FormName, Tag::FormValue, frame);
            true
        }),
        Reading::Multipart { boundary } => multipart::parse(body.bytes, &boundary).is_some_and(|parts| {
            multipart::describe(&parts, frame);
            true
        }),
        Reading::Json | Reading::Form | Reading::Raw => false,
    };
    if !read {
        frame.part(Tag::BodyRaw, body.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intent::fingerprint::{CANONICAL_BYTES_MAX, DEPTH_MAX};

    const JSON: &str = "application/json";
    const FORM: &str = "application/x-www-form-urlencoded";

    fn body(content_type: &str, bytes: impl AsRef<[u8]>) -> Fingerprint {
        Recipe::default().request("POST", "/charges").body(Some(content_type), bytes.as_ref()).finish()
    }

    #[test]
    fn spellings_of_one_body_are_the_same() {
        for (content_type, a, b) in [
            (JSON, r#"{"amount":100,"to":"x"}"#, r#" {"to" : "\u0078", "amount" : 1.00e2}"#),
            (JSON, "[1.0]", "[ 1 ]"),
            ("application/vnd.api+json", "[1.0]", "[ 1 ]"),
            ("application/json; charset=utf-8", "[1.0]", "[ 1 ]"),
            (FORM, "b=2&a=1", "a=%31&b=2"),
            (FORM, "a=x+y", "a=x%20y"),
        ] {
            assert_eq!(body(content_type, a), body(content_type, b), "{content_type}: {a} and {b}");
        }
        assert_eq!(body("Application/JSON", "[1]"), body("application/json;charset=UTF-8", "[1]"));
    }

    #[test]
    fn bodies_that_say_something_else_are_different() {
        for (content_type, a, b) in [
            (JSON, r#"{"amount":9007199254740993}"#, r#"{"amount":9007199254740992}"#),
            (JSON, r#"{"a":null}"#, "{}"),
            (JSON, r#"{"a":""}"#, r#"{"a":null}"#),
            (JSON, "[1,2]", "[2,1]"),
            (JSON, "", "{}"),
            (JSON, "", "null"),
            (FORM, "a=1&a=2", "a=2&a=1"),
            (FORM, "a", "a="),
            (FORM, "a=", ""),
            (FORM, "a=b%26c=d", "a=b&c=d"),
            (FORM, "i[][a]=1&i[][b]=2&i[][a]=3", "i[][a]=1&i[][a]=3&i[][b]=2"),
            ("text/plain", "[1]", "[ 1 ]"),
        ] {
            assert_ne!(body(content_type, a), body(content_type, b), "{content_type}: {a} and {b}");
        }
        assert_ne!(body(JSON, "1"), body("text/plain", "1"));
        assert_ne!(body(FORM, ""), body(JSON, ""));
    }

    #[test]
    fn without_a_canonical_form_only_the_same_bytes_are_the_same() {
        let deep =
            |levels: usize, space: &str| format!("{}{space}{}", "[".repeat(levels), "]".repeat(levels));
        let large = |bytes: usize, space: char| format!("[{}]", space.to_string().repeat(bytes - 2));
        for (content_type, a, b, canonical) in [
            (JSON, r#"{"a":1,"a":2}"#.to_owned(), r#"{"a":2,"a":1}"#.to_owned(), false),
            (JSON, r#"{"a":1,"a":1}"#.to_owned(), r#"{"a":1}"#.to_owned(), false),
            (JSON, "[1e9223372036854775808]".to_owned(), "[1e+9223372036854775808]".to_owned(), false),
            (JSON, "[".to_owned(), "[ ".to_owned(), false),
            (JSON, deep(DEPTH_MAX, ""), deep(DEPTH_MAX, " "), true),
            (JSON, deep(DEPTH_MAX + 1, ""), deep(DEPTH_MAX + 1, " "), false),
            (JSON, large(CANONICAL_BYTES_MAX, ' '), large(CANONICAL_BYTES_MAX, '\n'), true),
            (JSON, large(CANONICAL_BYTES_MAX + 1, ' '), large(CANONICAL_BYTES_MAX + 1, '\n'), false),
            (FORM, "a=%zz&b=1".to_owned(), "b=1&a=%zz".to_owned(), false),
            ("application/json; charset=latin1", "[1]".to_owned(), "[ 1]".to_owned(), false),
        ] {
            assert_eq!(body(content_type, &a), body(content_type, &a));
            assert_eq!(body(content_type, &a) == body(content_type, &b), canonical, "{:.40} {:.40}", a, b);
        }
        assert_ne!(body(JSON, b"\xEF\xBB\xBF[1]"), body(JSON, "[1]"), "a byte order mark");
    }

    /// As stripe-python sends a file; each retry has another boundary.
    fn upload(boundary: &str, purpose: &str, file: &str) -> Fingerprint {
        let form = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n{purpose}\r\n--{boundary}\r\n\
             Content-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n{file}\r\n--{boundary}--\r\n"
        );
        body(&format!("multipart/form-data; boundary={boundary}"), form)
    }

    #[test]
    fn a_multipart_boundary_does_not_matter_and_the_parts_do() {
        let sent = upload("9051914041544843365", "dispute", "evidence");
        assert_eq!(sent, upload("b2f1", "dispute", "evidence"));
        assert_ne!(sent, upload("b2f1", "dispute", "evidence!"));
        assert_ne!(sent, upload("b2f1", "logo", "evidence"));
        let malformed = |boundary: &str| body(&format!("multipart/form-data; boundary={boundary}"), "x");
        assert_eq!(malformed("a"), malformed("b"));
        assert_ne!(body("multipart/form-data; boundary=a", "--a--"), body("multipart/form-data", "--a--"));
    }

    #[test]
    fn a_form_beyond_the_bound_counts_as_its_bytes() {
        let recipe = Recipe::builder().canonical_bytes_max(7).build().unwrap();
        let form = |text: &str| recipe.request("POST", "/charges").body(Some(FORM), text.as_bytes()).finish();
        assert_eq!(form("a=1&b=2"), form("b=2&a=1"));
        assert_ne!(form("a=1&b=23"), form("b=23&a=1"));
    }

    #[test]
    fn a_body_that_is_missing_is_not_an_empty_one() {
        let recipe = Recipe::default();
        let request = || recipe.request("POST", "/charges");
        let fingerprints = [
            request().finish(),
            request().body(None, b"").finish(),
            request().body(Some(""), b"").finish(),
            request().body(Some(JSON), b"").finish(),
            request().body(Some(FORM), b"").finish(),
        ];
        for (i, a) in fingerprints.iter().enumerate() {
            assert!(!fingerprints[i + 1..].contains(a), "{i}");
        }
    }

    #[test]
    fn queries_are_compared_by_their_pairs() {
        let relaxed = Recipe::default();
        let strict = Recipe::builder().query_order_matters(true).build().unwrap();
        let ask = |recipe: &Recipe, query: &str| recipe.request("GET", "/").query(query).finish();
        for (a, b, same) in [
            ("a=1&b=2", "b=2&a=1", true),
            ("a=1&b=2", "a=1&&b=%32&", true),
            ("a=1&a=2", "a=2&a=1", false),
            ("a=1", "a=2", false),
            ("a", "a=", false),
            ("a=%", "a=%25", false),
            ("a=%&b=1", "b=1&a=%", false),
        ] {
            assert_eq!(ask(&relaxed, a) == ask(&relaxed, b), same, "{a} and {b}");
        }
        assert_ne!(ask(&strict, "a=1&b=2"), ask(&strict, "b=2&a=1"));
        assert_eq!(relaxed.request("GET", "/").finish(), ask(&relaxed, ""));
    }

    #[test]
    fn only_chosen_headers_count() {
        let recipe = Recipe::builder().header("X-Channel").header("x-region").build().unwrap();
        let send = |headers: &[(&str, &str)]| {
            headers
                .iter()
                .fold(recipe.request("GET", "/"), |request, (name, value)| request.header(name, value))
                .finish()
        };
        let web = send(&[("x-channel", "web"), ("x-region", "eu")]);
        assert_eq!(
            web,
            send(&[("X-REGION", "eu "), ("X-CHANNEL", " web"), ("User-Agent", "curl"), ("Date", "now")])
        );
        for other in [
            &[("x-channel", "app"), ("x-region", "eu")][..],
            &[("x-channel", "web")],
            &[("x-channel", "web"), ("x-region", "")],
            &[("x-channel", "eu"), ("x-region", "web")],
            &[("x-channel", "web"), ("x-region", "eu"), ("x-region", "eu")],
        ] {
            assert_ne!(web, send(other), "{other:?}");
        }
        assert_ne!(
            send(&[("x-region", "a"), ("x-region", "b")]),
            send(&[("x-region", "b"), ("x-region", "a")])
        );
    }

    #[test]
    fn path_values_count_by_name() {
        let recipe = Recipe::default();
        let get = |values: &[(&'static str, &'static str)]| {
            let request = recipe.request("GET", "/{a}/{b}");
            values.iter().fold(request, |request, (name, value)| request.path_value(name, value)).finish()
        };
        assert_eq!(get(&[("a", "1"), ("b", "2")]), get(&[("b", "2"), ("a", "1")]));
        assert_ne!(get(&[("a", "1"), ("b", "2")]), get(&[("a", "2"), ("b", "1")]));
        assert_ne!(get(&[("a", "1")]), get(&[("a", "1"), ("b", "")]));
    }
}
