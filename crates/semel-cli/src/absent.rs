//! Commands that this build leaves out, and the feature that adds them.

use std::ffi::OsString;
use std::fmt::Display;

use clap::Args;

use crate::failure::Failed;

/// A command that this build does not have. Its arguments are ignored.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Absent {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _arguments: Vec<OsString>,
}

/// The error for something that this build leaves out. `what` is the subject of the sentence.
pub(crate) fn absent(what: impl Display, feature: &str) -> Failed {
    Failed::usage(format!(
        "{what} is not in this build; build it with `--features {feature}`, or with `--features full` for everything"
    ))
}
