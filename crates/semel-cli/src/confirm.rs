//! Asks for confirmation before something that cannot be undone.

use std::io::{BufRead, IsTerminal, Write};

use crate::failure::Failed;

/// Continues if `--yes` was given or a person at the terminal confirms.
pub(crate) fn confirmed(yes: bool, what: &str) -> Result<(), Failed> {
    if yes {
        return Ok(());
    }
    let (stdin, mut stderr) = (std::io::stdin(), std::io::stderr());
    if !stdin.is_terminal() || !stderr.is_terminal() {
        return Err(Failed::not_done(format!("{what}; nothing was changed: add --yes if that is intended")));
    }
    let _ = write!(stderr, "{what}. Continue? [y/N] ");
    let _ = stderr.flush();
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failed::not_done("nothing was changed")),
    }
}
