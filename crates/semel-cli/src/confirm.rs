//! What cannot be taken back is asked about once more.

use std::io::{BufRead, IsTerminal, Write};

use crate::failure::Failed;

/// Goes on if `--yes` was said or a person at the terminal says so.
pub(crate) fn confirmed(yes: bool, what: &str) -> Result<(), Failed> {
    if yes {
        return Ok(());
    }
    let (stdin, mut stderr) = (std::io::stdin(), std::io::stderr());
    if !stdin.is_terminal() || !stderr.is_terminal() {
        return Err(Failed::not_done(format!("{what}; nothing was changed: say --yes if that is meant")));
    }
    let _ = write!(stderr, "{what}. Go on? [y/N] ");
    let _ = stderr.flush();
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failed::not_done("nothing was changed")),
    }
}
