//! Without a framework only the path of a request is known, not the route it will match.

use http::{Extensions, Uri};

pub(super) fn template(_: &Extensions) -> Option<&str> {
    None
}

pub(super) fn original_uri<'a>(_: &'a Extensions, uri: &'a Uri) -> &'a Uri {
    uri
}
