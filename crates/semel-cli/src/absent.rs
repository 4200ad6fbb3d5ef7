//! What this build leaves out, and the feature that adds it.

use std::ffi::OsString;
use std::fmt::Display;

use clap::Args;

use crate::failure::Failed;

/// A command that this build does not have. Its arguments are not read.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Absent {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _arguments: Vec<OsString>,
}

/// The answer to a request for something that this build leaves out. `what` is the subject of the sentence.
pub(crate) fn absent(what: impl Display, feature: &str) -> Failed {
    Failed::usage(format!(
        "{what} is not in this build; build it with `--features {feature}`, or with `--features full` for everything"
    ))
}
