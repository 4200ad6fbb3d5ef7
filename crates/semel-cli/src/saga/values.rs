//! Parsers for values of `semel saga`.

use semel::saga::{ParkReason, Status};

/// A step as a person names it: `charge`, or `charge#1` for its second use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StepName {
    pub(super) name: String,
    /// `None`: the one that is open.
    pub(super) nth: Option<u32>,
}

pub(super) fn parse_status(text: &str) -> Result<Status, String> {
    Status::from_name(text).ok_or_else(|| {
        let names = Status::ALL.map(Status::as_str).join(", ");
        format!("{text:?} is not a status; use {names}")
    })
}

pub(super) fn parse_reason(text: &str) -> Result<ParkReason, String> {
    ParkReason::ALL.into_iter().find(|reason| reason.as_str() == text).ok_or_else(|| {
        let names = ParkReason::ALL.map(ParkReason::as_str).join(", ");
        format!("{text:?} is not a reason; use {names}")
    })
}

/// Checks that it is JSON; the text is kept as it was written.
pub(super) fn parse_json(text: &str) -> Result<String, String> {
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("it is not JSON ({error}); a text needs its quotes: '\"ch_81\"'")),
    }
}

/// Ids of semel's own signals begin with a slash: one of a caller must not stand in their place.
pub(super) fn parse_signal_id(text: &str) -> Result<String, String> {
    match text.starts_with('/') {
        true => Err("ids that begin with a slash are semel's own".to_owned()),
        false => Ok(text.to_owned()),
    }
}

pub(super) fn parse_step(text: &str) -> Result<StepName, String> {
    let (name, nth) = match text.split_once('#') {
        Some((name, nth)) => (name, Some(nth)),
        None => (text, None),
    };
    let wrong = || format!("{text:?} is not a step; write it like charge or charge#0");
    let nth = nth.map(|nth| nth.parse::<u32>().map_err(|_| wrong())).transpose()?;
    if name.is_empty() {
        return Err(wrong());
    }
    Ok(StepName { name: name.to_owned(), nth })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_a_name_and_perhaps_a_number() {
        let step = |name: &str, nth| Ok(StepName { name: name.to_owned(), nth });
        assert_eq!(parse_step("charge"), step("charge", None));
        assert_eq!(parse_step("charge#2"), step("charge", Some(2)));
        for bad in ["", "#1", "charge#", "charge#x", "charge#-1"] {
            assert!(parse_step(bad).unwrap_err().contains("is not a step"), "{bad}");
        }
    }

    #[test]
    fn names_are_those_of_the_library() {
        assert_eq!(parse_status("parked"), Ok(Status::Parked));
        assert!(parse_status("park").unwrap_err().contains("running, waiting"));
        assert_eq!(parse_reason("undo_stuck"), Ok(ParkReason::UndoStuck));
        assert!(parse_reason("stuck").unwrap_err().contains("forward_stuck"));
        assert!(parse_json("ch_81").unwrap_err().contains("is not JSON"));
        assert_eq!(parse_json(" [1] ").as_deref(), Ok(" [1] "));
        assert!(parse_signal_id("/cancel").is_err() && parse_signal_id("ticket/1").is_ok());
    }
}
