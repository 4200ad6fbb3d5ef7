//! Wrong arguments, in one line.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::failure::Failed;

/// Help and version go to stdout unchanged; everything else is one line on stderr, like all our errors.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => Failed::usage(without_secret(one_line(&error.to_string()), error)).report(),
    }
}

/// A value given for a secret's source may be the secret itself, so the message does not repeat it.
fn without_secret(text: String, error: &clap::Error) -> String {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let (arg, value) = (context(ContextKind::InvalidArg), context(ContextKind::InvalidValue));
    if value.is_empty() || !arg.ends_with("<SOURCE>") {
        return text;
    }
    text.replacen(value, "…", 1)
}

/// Clap's text without the usage at its end, which `--help` shows better.
fn one_line(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let end = ["\n\nUsage:", "\n\nFor more information"].iter().filter_map(|mark| text.find(mark)).min();
    format!("{}; see --help", text[..end.unwrap_or(text.len())].trim_end())
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn what_clap_says_at_length() {
        assert_eq!(
            one_line(
                "error: missing:\n  --by <NAME>\n\nUsage: semel\n\nFor more information, try '--help'.\n"
            ),
            "missing:\n  --by <NAME>; see --help"
        );
    }
}
