//! Which fields of a JSON body count.

use super::RecipeError;
use super::frame::{Frame, Tag};

/// Most paths a recipe may include, and most it may exclude. The paths that still match while a body is
/// walked are the bits of one word.
pub const FIELD_PATHS_MAX: usize = 64;

/// A path as in RFC 6901 (`/meta/sent_at`, `~1` for a slash and `~0` for a tilde in a name), where a segment
/// `*` stands for any member and any element.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FieldPath {
    text: String,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    Any,
    Name { name: String, index: Option<usize> },
}

/// One step down into a value.
#[derive(Clone, Copy)]
pub(super) enum Step<'a> {
    Key(&'a [u8]),
    Index(usize),
}

impl FieldPath {
    pub(super) fn parse(text: &str) -> Result<Self, RecipeError> {
        let refuse = |why| RecipeError::FieldPath { path: text.to_owned(), why };
        let names = text.strip_prefix('/').ok_or_else(|| refuse("must begin with a slash"))?;
        let segments = names
            .split('/')
            .map(|segment| {
                if segment == "*" {
                    return Ok(Segment::Any);
                }
                // With every `~1` and `~0` gone, a tilde that is left escapes nothing.
                if segment.replace("~0", "").replace("~1", "").contains('~') {
                    return Err(refuse("has a `~` that is neither `~0` nor `~1`"));
                }
                let name = segment.replace("~1", "/").replace("~0", "~");
                let index = name.parse().ok().filter(|index: &usize| index.to_string() == name);
                Ok(Segment::Name { name, index })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { text: text.to_owned(), segments })
    }
}

impl Segment {
    fn matches(&self, step: Step<'_>) -> bool {
        match (self, step) {
            (Self::Any, _) => true,
            (Self::Name { name, .. }, Step::Key(key)) => name.as_bytes() == key,
            (Self::Name { index, .. }, Step::Index(at)) => *index == Some(at),
        }
    }
}

/// The field paths that a recipe includes or excludes, sorted and without duplicates: the order of the builder's calls
/// does not change the fingerprint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selection {
    included: Vec<FieldPath>,
    excluded: Vec<FieldPath>,
}

/// Where a walk stands: the paths whose beginning led here.
#[derive(Clone, Copy)]
pub(super) struct Cursor {
    depth: usize,
    included: u64,
    excluded: u64,
    /// Inside something included: everything below counts.
    taken: bool,
}

/// What a step led to.
pub(super) enum Found {
    /// A value that counts, if only for something below it.
    Kept(Cursor),
    /// A value that an included path names: from here on everything counts.
    Chosen(Cursor),
    /// A value that does not count.
    Dropped,
}

impl Selection {
    pub(super) fn new(included: &[String], excluded: &[String]) -> Result<Self, RecipeError> {
        Ok(Self { included: parse_all(included)?, excluded: parse_all(excluded)? })
    }

    /// The same exclusions, with everything else included.
    pub(super) fn without_choice(&self) -> Self {
        Self { included: Vec::new(), excluded: self.excluded.clone() }
    }

    /// Whether only named fields count.
    pub(super) fn chooses(&self) -> bool {
        !self.included.is_empty()
    }

    pub(super) fn describe(&self, frame: &mut Frame) {
        for (name, paths) in [("included", &self.included), ("excluded", &self.excluded)] {
            frame.part(Tag::Setting, name.as_bytes());
            for path in paths {
                frame.part(Tag::PathName, path.text.as_bytes());
            }
        }
    }

    pub(super) fn root(&self) -> Cursor {
        Cursor {
            depth: 0,
            included: first_bits(self.included.len()),
            excluded: first_bits(self.excluded.len()),
            taken: self.included.is_empty(),
        }
    }

    #[inline]
    pub(super) fn step(&self, from: Cursor, step: Step<'_>) -> Found {
        if from.taken && from.excluded == 0 {
            return Found::Kept(Cursor::ALL);
        }
        self.step_along_paths(from, step)
    }

    fn step_along_paths(&self, from: Cursor, step: Step<'_>) -> Found {
        let (excluded, hit) = advance(&self.excluded, from.excluded, from.depth, step);
        if hit {
            return Found::Dropped;
        }
        let mut to = Cursor { depth: from.depth + 1, included: 0, excluded, taken: from.taken };
        if from.taken {
            return Found::Kept(to);
        }
        let (included, hit) = advance(&self.included, from.included, from.depth, step);
        if hit {
            to.taken = true;
            return Found::Chosen(to);
        }
        to.included = included;
        if included == 0 { Found::Dropped } else { Found::Kept(to) }
    }
}

impl Cursor {
    /// Below here every value counts, and no path needs to be asked.
    pub(super) const ALL: Self = Self { depth: 0, included: 0, excluded: 0, taken: true };
}

/// The paths of `alive` that go on after `step`, and whether one of them ends there.
fn advance(paths: &[FieldPath], mut alive: u64, depth: usize, step: Step<'_>) -> (u64, bool) {
    let (mut on, mut ends) = (0, false);
    while alive != 0 {
        let bit = alive & alive.wrapping_neg();
        alive ^= bit;
        let segments = &paths[bit.trailing_zeros() as usize].segments;
        if segments.get(depth).is_some_and(|segment| segment.matches(step)) {
            if segments.len() == depth + 1 {
                ends = true;
            } else {
                on |= bit;
            }
        }
    }
    (on, ends)
}

fn first_bits(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

fn parse_all(paths: &[String]) -> Result<Vec<FieldPath>, RecipeError> {
    let mut parsed = paths.iter().map(|path| FieldPath::parse(path)).collect::<Result<Vec<_>, _>>()?;
    parsed.sort();
    parsed.dedup();
    if parsed.len() > FIELD_PATHS_MAX {
        return Err(RecipeError::TooManyFieldPaths { count: parsed.len() });
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(paths: &[&str], steps: &[Step<'_>]) -> &'static str {
        let paths: Vec<String> = paths.iter().map(|&path| path.to_owned()).collect();
        let selection = Selection::new(&paths, &[]).unwrap();
        let mut cursor = selection.root();
        let mut found = "kept";
        for &step in steps {
            (cursor, found) = match selection.step(cursor, step) {
                Found::Kept(cursor) => (cursor, "kept"),
                Found::Chosen(cursor) => (cursor, "chosen"),
                Found::Dropped => return "dropped",
            };
        }
        found
    }

    #[test]
    fn paths_lead_where_they_say() {
        use Step::{Index, Key};
        for (path, steps, found) in [
            ("/a", &[Key(b"a")][..], "chosen"),
            ("/a", &[Key(b"b")], "dropped"),
            ("/a", &[Key(b"a"), Key(b"b")], "kept"),
            ("/a/b", &[Key(b"a")], "kept"),
            ("/a/b", &[Key(b"a"), Key(b"c")], "dropped"),
            ("/*/b", &[Key(b"x"), Key(b"b")], "chosen"),
            ("/*/b", &[Index(3), Key(b"b")], "chosen"),
            ("/2", &[Index(2)], "chosen"),
            ("/2", &[Key(b"2")], "chosen"),
            ("/02", &[Index(2)], "dropped"),
            ("/02", &[Key(b"02")], "chosen"),
            ("/a~1b/~0~01", &[Key(b"a/b"), Key(b"~~1")], "chosen"),
            ("/", &[Key(b"")], "chosen"),
        ] {
            assert_eq!(walk(&[path], steps), found, "{path}");
        }
    }

    #[test]
    fn all_64_paths_are_looked_at_and_a_65th_is_refused() {
        let paths: Vec<String> = (0..FIELD_PATHS_MAX).map(|n| format!("/f{n}")).collect();
        let borrowed: Vec<&str> = paths.iter().map(String::as_str).collect();
        for path in &paths {
            assert_eq!(walk(&borrowed, &[Step::Key(&path.as_bytes()[1..])]), "chosen");
        }
        let one_more: Vec<String> = (0..=FIELD_PATHS_MAX).map(|n| format!("/f{n}")).collect();
        assert!(matches!(Selection::new(&[], &one_more), Err(RecipeError::TooManyFieldPaths { count: 65 })));
    }

    #[test]
    fn a_path_that_is_none_is_refused() {
        for path in ["", "a", "a/b", "*", "/a~", "/~2", "/a~0~x"] {
            assert!(matches!(FieldPath::parse(path), Err(RecipeError::FieldPath { .. })), "{path}");
        }
    }
}
