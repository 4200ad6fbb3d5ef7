//! Without a framework a request says its path, and nothing of the route it will take.

use http::{Extensions, Uri};

pub(super) fn template(_: &Extensions) -> Option<&str> {
    None
}

pub(super) fn sent<'a>(_: &'a Extensions, uri: &'a Uri) -> &'a Uri {
    uri
}
