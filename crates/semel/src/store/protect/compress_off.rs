//! Built without compression.

use super::envelope::misconfigured;
use crate::intent::identity::IntentId;
use crate::store::StoreError;

pub(super) fn compress(_: &[u8]) -> Option<Vec<u8>> {
    None
}

pub(super) fn decompress(id: &IntentId, _: &[u8], _: usize) -> Result<Vec<u8>, StoreError> {
    Err(misconfigured(
        id,
        "it is compressed, and this build has no compression; build with the feature `zstd`",
    ))
}
