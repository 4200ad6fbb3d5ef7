//! What counts as caught, where a bug was planted.

/// Whether the law was seen to be broken. A store that only failed, or did not open, shows nothing.
pub(crate) fn broken(judged: std::thread::Result<()>) -> bool {
    let Err(panic) = judged else { return false };
    let said = match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(said), _) => said.as_str(),
        (None, Some(said)) => said,
        (None, None) => "",
    };
    assert!(said.contains("is broken") && !said.contains("the store failed"), "not by the law: {said}");
    true
}
