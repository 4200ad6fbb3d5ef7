//! `multipart/form-data` by its parts.
//!
//! The boundary is random: a retry by stripe-python has another one, so the bytes of two equal forms differ.
//! A part counts as its name, file name, content type and bytes, in the order of the form. Other part headers
//! are left out, since they describe how the part travelled (`content-length`), except one: a
//! `content-transfer-encoding` that changes the bytes makes the form unreadable here.

use super::frame::{Frame, Tag};
use super::media;

/// Most parts of a form that is read; one of more counts as its bytes.
const PARTS_MAX: usize = 256;

/// RFC 2046's longest boundary.
const BOUNDARY_BYTES_MAX: usize = 70;

pub(super) struct Part<'a> {
    name: String,
    filename: Option<String>,
    filename_extended: Option<String>,
    content_type: Option<String>,
    body: &'a [u8],
}

/// The parts of `form`; nothing if it is malformed in any way.
///
/// Strict where readers are lenient: text before the first or after the last boundary, or a boundary that goes
/// on, means that two readers might see two forms.
pub(super) fn parse<'a>(form: &'a [u8], boundary: &str) -> Option<Vec<Part<'a>>> {
    if boundary.is_empty() || boundary.len() > BOUNDARY_BYTES_MAX || boundary.bytes().any(|b| b < b' ') {
        return None;
    }
    let delimiter = format!("\r\n--{boundary}");
    let mut rest = form.strip_prefix(&delimiter.as_bytes()[2..])?;
    let mut parts = Vec::new();
    loop {
        if let Some(end) = rest.strip_prefix(b"--") {
            let nothing_follows = end.is_empty() || end == b"\r\n";
            return nothing_follows.then_some(parts);
        }
        if parts.len() == PARTS_MAX {
            return None;
        }
        // RFC 2046 lets blanks pad a boundary line.
        let padding = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let inside = rest[padding..].strip_prefix(b"\r\n")?;
        let end = find(inside, delimiter.as_bytes())?;
        parts.push(part(&inside[..end])?);
        rest = &inside[end + delimiter.len()..];
    }
}

pub(super) fn describe(parts: &[Part<'_>], frame: &mut Frame) {
    frame.part(Tag::BodyMultipart, &[]);
    for part in parts {
        frame.part(Tag::PartName, part.name.as_bytes());
        for (tag, value) in [
            (Tag::PartFilename, &part.filename),
            (Tag::PartFilenameExtended, &part.filename_extended),
            (Tag::PartContentType, &part.content_type),
        ] {
            if let Some(value) = value {
                frame.part(tag, value.as_bytes());
            }
        }
        frame.part(Tag::PartBody, part.body);
    }
}

fn part(bytes: &[u8]) -> Option<Part<'_>> {
    let head_end = find(bytes, b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..head_end]).ok()?;
    let body = &bytes[head_end + 4..];
    let (mut disposition, mut content_type) = (None, None);
    for line in head.split("\r\n") {
        let (name, value) = line.split_once(':')?;
        // A folded line, a bare line end or a blank before the colon: readers disagree.
        if name.is_empty() || name.contains(char::is_whitespace) || value.contains(['\r', '\n']) {
            return None;
        }
        let value = value.trim();
        let unclear = match name.to_ascii_lowercase().as_str() {
            "content-disposition" => disposition.replace(value).is_some(),
            "content-type" => content_type.replace(media::essence(value).into_owned()).is_some(),
            "content-transfer-encoding" => !is_identity(value),
            _ => false,
        };
        if unclear {
            return None;
        }
    }

    let (kind, parameters) = disposition?.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("form-data") {
        return None;
    }
    let (mut name, mut filename, mut filename_extended) = (None, None, None);
    for (key, value) in media::parameters(parameters)? {
        let slot = match key.as_str() {
            "name" => &mut name,
            "filename" => &mut filename,
            "filename*" => &mut filename_extended,
            _ => continue,
        };
        if slot.replace(value).is_some() {
            return None;
        }
    }
    Some(Part { name: name?, filename, filename_extended, content_type, body })
}

fn is_identity(encoding: &str) -> bool {
    ["7bit", "8bit", "binary"].iter().any(|identity| encoding.eq_ignore_ascii_case(identity))
}

/// Every needle begins with a carriage return. A boundary has no other, so the search is linear.
fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + bytes[from..].iter().position(|&byte| byte == b'\r')?;
        if bytes[at..].starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(form: &str) -> Option<Vec<String>> {
        let show = |part: &Part<'_>| {
            let option = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
            let body = String::from_utf8_lossy(part.body);
            let (file, extended) = (option(&part.filename), option(&part.filename_extended));
            format!("{} {file} {extended} {} [{body}]", part.name, option(&part.content_type))
        };
        Some(parse(form.as_bytes(), "B")?.iter().map(show).collect())
    }

    #[test]
    fn a_boundary_may_hold_blanks_and_no_control_characters() {
        for (boundary, is_one) in [("a b", true), ("a\tb", false), ("a\0", false), ("", false)] {
            assert_eq!(
                parse(format!("--{boundary}--").as_bytes(), boundary).is_some(),
                is_one,
                "{boundary:?}"
            );
        }
    }

    #[test]
    fn a_part_whose_header_has_no_clear_name_is_malformed() {
        let with = |line: &str| read(&format!("--B\r\n{line}{FIELD}\r\n--B--"));
        assert!(with("X-A: 1\r\n").is_some());
        for line in [": 1\r\n", "X-A : 1\r\n", "X A: 1\r\n", "X-A: 1\r2\r\n"] {
            assert_eq!(with(line), None, "{line:?}");
        }
    }

    const FIELD: &str = "Content-Disposition: form-data; name=\"a\"\r\n\r\n1";

    #[test]
    fn parts_are_read() {
        for (form, parts) in [
            ("--B--".to_owned(), &[][..]),
            ("--B--\r\n".to_owned(), &[]),
            (format!("--B\r\n{FIELD}\r\n--B--\r\n"), &["a - - - [1]"]),
            (format!("--B \t\r\n{FIELD}\r\n--B\r\n{FIELD}\r\n--B--"), &["a - - - [1]", "a - - - [1]"]),
            (format!("--B\r\n{FIELD}\r\n\r\n--Not\r\n--B--"), &["a - - - [1\r\n\r\n--Not]"]),
            (
                "--B\r\ncontent-type: Text/CSV; charset=utf-8\r\nX-Other: 1\r\nContent-Transfer-Encoding: Binary\r\n\
                 CONTENT-DISPOSITION: Form-Data; filename=\"a;b.csv\"; name=file; filename*=utf-8''a\r\n\r\n\r\n--B--"
                    .to_owned(),
                &["file a;b.csv utf-8''a text/csv []"],
            ),
        ] {
            let parts: Vec<String> = parts.iter().map(|&part| part.to_owned()).collect();
            assert_eq!(read(&form), Some(parts), "{form}");
        }
    }

    #[test]
    fn a_malformed_form_is_not_read() {
        let with = |head: &str| format!("--B\r\n{head}\r\n\r\n1\r\n--B--");
        let named = "Content-Disposition: form-data; name=a";
        assert!(read(&with(named)).is_some());
        for form in [
            String::new(),
            "--".to_owned(),
            "--B".to_owned(),
            "--B\r\n".to_owned(),
            "--B\r\n--B--".to_owned(),
            format!("--B\r\n{FIELD}"),
            format!("--B\r\n{FIELD}\r\n--B"),
            format!("--B\r\n{FIELD}\r\n--B-"),
            format!("--B\r\n{FIELD}\r\n--Bx\r\n--B--"),
            format!("--B\n{FIELD}\r\n--B--"),
            format!("preamble\r\n--B\r\n{FIELD}\r\n--B--"),
            format!("--B\r\n{FIELD}\r\n--B--\r\nepilogue"),
            "--B\r\n\r\n1\r\n--B--".to_owned(),
            with("Content-Type: text/plain"),
            with("Content-Disposition: form-data"),
            with("Content-Disposition: form-data; filename=a"),
            with("Content-Disposition: form-data; name=a; name=b"),
            with("Content-Disposition: form-data; name=\"a"),
            with("Content-Disposition: attachment; name=a"),
            with("Content-Disposition : form-data; name=a"),
            with(&format!("{named}\r\n{named}")),
            with(&format!("{named}\r\n folded=1")),
            with(&format!("{named}\r\nnonsense")),
            with(&format!("{named}\nContent-Type: a/b")),
            with(&format!("{named}\r\nContent-Type: a/b\r\nContent-Type: a/c")),
            with(&format!("{named}\r\nContent-Transfer-Encoding: base64")),
        ] {
            assert_eq!(read(&form), None, "{form:?}");
        }
    }

    #[test]
    fn forms_that_say_something_else_are_different() {
        let part = |head: &str, body: &str| {
            format!("--B\r\nContent-Disposition: form-data; {head}\r\n\r\n{body}\r\n")
        };
        let forms = [
            String::new(),
            part("name=a", ""),
            part("name=b", ""),
            part("name=a", "1"),
            part("name=a", "1\r\n"),
            part("name=a; filename=b", "1"),
            part("name=a; filename=\"\"", "1"),
            part("name=a; filename*=b", "1"),
            part("name=a; filename=b\r\nContent-Type: text/csv", "1"),
            part("name=a\r\nContent-Type: text/csv", "1"),
            part("name=a\r\nContent-Type: text/plain", "1"),
            part("name=a", "1") + &part("name=b", "2"),
            part("name=b", "2") + &part("name=a", "1"),
            part("name=a", "1") + &part("name=a", "1"),
        ];
        let digests = forms.map(|form| {
            let mut frame = Frame::new("test");
            describe(&parse(format!("{form}--B--").as_bytes(), "B").unwrap(), &mut frame);
            frame.finish()
        });
        for (i, digest) in digests.iter().enumerate() {
            assert!(!digests[i + 1..].contains(digest), "form {i} equals a later one");
        }
    }

    #[test]
    fn the_bounds_hold() {
        let form = |count: usize| format!("{}--B--", format!("--B\r\n{FIELD}\r\n").repeat(count));
        assert_eq!(read(&form(PARTS_MAX)).map(|parts| parts.len()), Some(PARTS_MAX));
        assert_eq!(read(&form(PARTS_MAX + 1)), None);
        for (length, readable) in
            [(0, false), (1, true), (BOUNDARY_BYTES_MAX, true), (BOUNDARY_BYTES_MAX + 1, false)]
        {
            let boundary = "b".repeat(length);
            let form = format!("--{boundary}--");
            assert_eq!(parse(form.as_bytes(), &boundary).is_some(), readable, "{length}");
        }
    }
}
