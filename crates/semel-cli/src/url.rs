//! URLs: how they are shown, and the options in them.

use crate::failure::Failed;

/// A URL with options in its query.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub(crate) scheme: String,
    /// All but the query.
    pub(crate) base: String,
    options: Vec<(String, String)>,
}

impl Address {
    pub(crate) fn read(url: &str) -> Result<Self, String> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let Some((scheme, rest)) = base.split_once("://").filter(|(scheme, _)| !scheme.is_empty()) else {
            return Err(format!("{:?} is not a URL", without_password(base)));
        };
        if rest.is_empty() {
            return Err(format!("{scheme}:// has no host"));
        }
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decoded(name)?, decoded(value)?))
        });
        let options = pairs.collect::<Result<_, String>>()?;
        Ok(Self { scheme: scheme.to_ascii_lowercase(), base: base.to_owned(), options })
    }

    /// Host and everything after it, without the scheme.
    pub(crate) fn rest(&self) -> &str {
        self.base.split_once("://").map_or("", |(_, rest)| rest)
    }

    /// Takes an option out.
    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.options.iter().position(|(have, _)| have == name)?;
        Some(self.options.remove(at).1)
    }

    /// Takes an option out and parses it.
    pub(crate) fn read_option<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Failed> {
        let Some(text) = self.take(name) else { return Ok(None) };
        read(&text).map(Some).map_err(|why| Failed::usage(format!("{name}= in the URL: {why}")))
    }

    /// Takes out all options whose name fits.
    pub(crate) fn take_where(&mut self, fits: impl Fn(&str) -> bool) -> Vec<(String, String)> {
        let (taken, left) = std::mem::take(&mut self.options).into_iter().partition(|(name, _)| fits(name));
        self.options = left;
        taken
    }

    /// Refuses options that are left over: a misspelled option must not silently fall back to the default.
    pub(crate) fn finish(self, known: &str) -> Result<(), Failed> {
        match self.options.first() {
            None => Ok(()),
            Some((name, _)) => {
                Err(Failed::usage(format!("{}:// has no option {name:?}; it has {known}", self.scheme)))
            }
        }
    }
}

/// Percent-decodes. A `+` stays a plus: these are not forms.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or_else(|| format!("{text:?} has a % without two hex digits; write it as %25"))?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| format!("{text:?} is not text"))
}

/// The URL for logs and listings.
pub(crate) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    match rest.rsplit_once('@') {
        Some((who, host)) => {
            let user = who.split(':').next().unwrap_or("");
            format!("{scheme}://{user}:…@{host}")
        }
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_and_none_is_left_over() {
        let mut address =
            Address::read("Kafka://a:1,b:2?compression=lz4&cloudevents=%2Fpay%20s&client.id=x").unwrap();
        assert_eq!((address.scheme.as_str(), address.rest()), ("kafka", "a:1,b:2"));
        assert_eq!(address.take("compression").as_deref(), Some("lz4"));
        assert_eq!(address.take("cloudevents").as_deref(), Some("/pay s"));
        assert_eq!(address.take("nothing"), None);
        assert_eq!(address.take_where(|name| name.contains('.')), [("client.id".into(), "x".into())]);
        address.finish("none").unwrap();
        let left = Address::read("kafka://a?linger=1ms").unwrap().finish("compression");
        assert!(format!("{left:?}").contains("has no option \\\"linger\\\"; it has compression"), "{left:?}");
    }

    #[test]
    fn what_is_no_url() {
        for (text, says) in [
            ("kafka", "is not a URL"),
            ("://x", "is not a URL"),
            ("kafka://", "has no host"),
            ("kafka://h?a=%2", "two hex digits"),
            ("kafka://h?a=%zz", "two hex digits"),
        ] {
            assert!(Address::read(text).unwrap_err().contains(says), "{text}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(without_password("postgres://u:p@h/db"), "postgres://u:…@h/db");
        assert_eq!(without_password("sqlite:semel.db"), "sqlite:semel.db");
        assert_eq!(without_password("redis://h"), "redis://h");
    }
}
