//! Results of `--check`: one line per check, and the exit code.

use std::fmt::Write;

use serde::Serialize;

use crate::failure::Failed;
use crate::table::printable;

/// The result of one check. Names here are an interface: add, never rename.
#[derive(Serialize)]
pub(crate) struct Check {
    what: &'static str,
    pub(crate) ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip)]
    verdict: Verdict,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Fine,
    /// The server could not be asked.
    Unknown,
    Broken,
}

impl Check {
    pub(crate) fn fine(what: &'static str) -> Self {
        Self { what, ok: true, why: None, verdict: Verdict::Fine }
    }

    /// Fine, with a remark.
    pub(crate) fn found(what: &'static str, says: String) -> Self {
        Self { why: Some(says).filter(|says| !says.is_empty()), ..Self::fine(what) }
    }

    pub(crate) fn broken(what: &'static str, why: String) -> Self {
        Self { what, ok: false, why: Some(why), verdict: Verdict::Broken }
    }

    pub(crate) fn unknown(what: &'static str, why: String) -> Self {
        Self { what, ok: false, why: Some(why), verdict: Verdict::Unknown }
    }
}

/// Appends one line per check and one per note.
pub(crate) fn lines(text: &mut String, checks: &[Check], notes: &[String]) {
    for check in checks {
        let mark = match check.verdict {
            Verdict::Fine => "ok",
            Verdict::Unknown => "?",
            Verdict::Broken => "BROKEN",
        };
        let why = check.why.as_ref().map_or_else(String::new, |why| format!(": {}", printable(why)));
        let _ = writeln!(text, "{mark:<7} {}{why}", check.what);
    }
    for note in notes {
        let _ = writeln!(text, "note    {note}");
    }
}

/// Exit code 2 if the guarantee cannot be kept, 1 if that could not be verified.
pub(crate) fn conclude(checks: &[Check]) -> Result<(), Failed> {
    let worst = |verdict| checks.iter().find(|check| check.verdict == verdict);
    let why = |check: &Check| format!("{}: {}", check.what, check.why.as_deref().unwrap_or_default());
    match (worst(Verdict::Broken), worst(Verdict::Unknown)) {
        (Some(check), _) => {
            Err(Failed::usage(format!("this configuration cannot keep its guarantee: {}", why(check))))
        }
        (None, Some(check)) => {
            Err(Failed::not_done(format!("could not verify the configuration: {}", why(check))))
        }
        (None, None) => Ok(()),
    }
}
