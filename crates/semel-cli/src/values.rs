//! Parsers for argument values.

use semel::State;

pub(crate) fn parse_state(text: &str) -> Result<State, String> {
    State::from_name(text).ok_or_else(|| {
        let names = State::ALL.map(State::as_str).join(", ");
        format!("{text:?} is not a state; use {names}")
    })
}

pub(crate) fn parse_by(text: &str) -> Result<String, String> {
    parse_note(text, 200)
}

pub(crate) fn parse_why(text: &str) -> Result<String, String> {
    parse_note(text, 2_000)
}

/// The store would cut off a longer text; refusing it is better.
fn parse_note(text: &str, bytes_max: usize) -> Result<String, String> {
    match text.trim() {
        "" => Err("it is empty; write something that helps a later reader".to_owned()),
        note if note.len() > bytes_max => Err(format!("it has {} bytes; at most {bytes_max}", note.len())),
        note => Ok(note.to_owned()),
    }
}

pub(crate) fn parse_header(text: &str) -> Result<(String, String), String> {
    let wrong = || format!("{text:?} is not a header; write it like 'content-type: text/plain'");
    let (name, value) = text.split_once(':').ok_or_else(wrong)?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) || value.chars().any(|c| c.is_control() && c != '\t') {
        return Err(wrong());
    }
    Ok((name.to_ascii_lowercase(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers() {
        assert_eq!(parse_header("Content-Type:  a/b "), Ok(("content-type".into(), "a/b".into())));
        assert_eq!(parse_header("x:"), Ok(("x".into(), String::new())));
        for bad in ["", ":v", "no colon", "a b: c", "a: b\r\nc: d"] {
            assert!(parse_header(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn notes_say_something_and_are_not_cut_off() {
        assert_eq!(parse_by(" ana ").as_deref(), Ok("ana"));
        assert!(parse_by("  ").is_err());
        assert!(parse_by(&"x".repeat(201)).is_err());
        assert!(parse_why(&"x".repeat(2_000)).is_ok());
    }
}
