//! Built without encryption.

use bytes::BytesMut;

use super::envelope::{Bound, Unreadable};
use crate::store::StoreError;

/// Has no value: this build has no keys.
#[derive(Clone, Debug)]
pub(super) enum Ring {}

impl Ring {
    pub(super) fn seal(&self, _: &Bound, _: &[u8], _: &mut BytesMut) -> Result<(), StoreError> {
        match *self {}
    }

    pub(super) fn has(&self, _: &[u8]) -> bool {
        match *self {}
    }

    pub(super) fn open(_: Option<&Self>, bound: &Bound, _: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let _ = bound.bytes("");
        Err(Unreadable::misconfigured(
            "it is encrypted, and this build has no encryption; build with the feature `seal`",
        ))
    }
}
