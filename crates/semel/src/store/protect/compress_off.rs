//! Built without compression.

use super::envelope::Unreadable;

pub(super) fn compress(_: &[u8]) -> Option<Vec<u8>> {
    None
}

pub(super) fn decompress(_: &[u8], _: usize) -> Result<Vec<u8>, Unreadable> {
    Err(Unreadable::misconfigured(
        "it is compressed, and this build has no compression; build with the feature `zstd`",
    ))
}
