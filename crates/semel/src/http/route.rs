//! Route templates such as `POST /payments/{id}/refund`, and the requests they match.

use http::Method;

/// A method and a path template: `{name}` stands for one segment, `{*name}` at the end for all the rest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) template: String,
    segments: Vec<Segment>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Segment {
    Text(Vec<u8>),
    Any,
    Rest,
}

impl Route {
    /// Parses `METHOD /template`.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let (method, template) = text.split_once(' ').ok_or("write it as `POST /payments/{id}`")?;
        let method = method.parse::<Method>().map_err(|_| "invalid HTTP method")?;
        let Some(path) = template.strip_prefix('/') else { return Err("the path must begin with a slash") };
        if template.contains(['?', '#', ' ']) {
            return Err("a template has no query, fragment or space");
        }
        let mut segments = Vec::new();
        for segment in path.split('/') {
            if segments.last() == Some(&Segment::Rest) {
                return Err("`{*…}` takes all the rest; nothing may follow it");
            }
            let variable = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            segments.push(match variable {
                Some(name) if name.starts_with('*') && name.len() > 1 => Segment::Rest,
                Some(name) if !name.is_empty() && !name.starts_with('*') => Segment::Any,
                None if !segment.contains(['{', '}']) => Segment::Text(decoded(segment)),
                _ => return Err("a variable takes a whole segment: `/payments/{id}`"),
            });
        }
        Ok(Self { method, template: template.to_owned(), segments })
    }

    /// Whether a request matches this route, by the framework's own template or by its path.
    pub(super) fn matches(&self, method: &Method, template: Option<&str>, path: &str) -> bool {
        self.method == *method && (template == Some(&*self.template) || self.matches_path(path))
    }

    fn matches_path(&self, path: &str) -> bool {
        let Some(path) = path.strip_prefix('/') else { return false };
        let mut given = path.split('/');
        for segment in &self.segments {
            match (segment, given.next()) {
                (Segment::Rest, Some(first)) => return !first.is_empty(),
                (Segment::Any, Some(value)) if !value.is_empty() => {}
                // Compared decoded: `/%70ayments` must not slip past a rule for `/payments`.
                (Segment::Text(text), Some(value)) if is_decoded(text, value) => {}
                _ => return false,
            }
        }
        given.next().is_none()
    }
}

fn is_decoded(text: &[u8], segment: &str) -> bool {
    if segment.contains('%') { *text == decoded(segment) } else { text == segment.as_bytes() }
}

/// Percent-decodes a segment; an invalid escape stays as it is.
fn decoded(segment: &str) -> Vec<u8> {
    let mut bytes = segment.bytes();
    let mut plain = Vec::with_capacity(segment.len());
    while let Some(byte) = bytes.next() {
        let escaped = (byte == b'%').then(|| {
            let mut ahead = bytes.clone();
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            let value = digit(ahead.next())? * 16 + digit(ahead.next())?;
            bytes = ahead;
            u8::try_from(value).ok()
        });
        plain.push(escaped.flatten().unwrap_or(byte));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_match_by_segment() {
        for (template, path, matches) in [
            ("/payments", "/payments", true),
            ("/payments", "/%70ayments", true),
            ("/payments", "/payments/", false),
            ("/payments", "/payments/7", false),
            ("/payments/{id}", "/payments/7", true),
            ("/payments/{id}", "/payments/", false),
            ("/payments/{id}/refund", "/payments/a%2Fb/refund", true),
            ("/payments/{id}/refund", "/payments/a/b/refund", false),
            ("/{*rest}", "/a/b/c", true),
            ("/{*rest}", "/", false),
            ("/", "/", true),
            ("/100%", "/100%", true),
            ("/100%", "/100%25", true),
        ] {
            let route = Route::parse(&format!("POST {template}")).unwrap();
            assert_eq!(route.matches(&Method::POST, None, path), matches, "{template} {path}");
            assert!(!route.matches(&Method::PUT, None, path));
        }
        let route = Route::parse("POST /a/{b}").unwrap();
        assert!(route.matches(&Method::POST, Some("/a/{b}"), "/elsewhere"));
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for bad in [
            "/payments",
            "POST",
            "POST payments",
            "PO(ST /a",
            "POST /a?b",
            "POST /a{b}",
            "POST /{}",
            "POST /{*}",
            "POST /{*a}/b",
            "POST /a b",
        ] {
            assert!(Route::parse(bad).is_err(), "{bad}");
        }
    }
}
