//! Compression.

use super::envelope::{Protection, corrupt};
use crate::intent::identity::IntentId;
use crate::store::StoreError;

/// Quick, and most of what JSON gives.
const LEVEL: i32 = 3;

impl Protection {
    /// Compresses outcomes of more than this many bytes, headers included, where that makes them smaller.
    ///
    /// Compressed before it is encrypted: who sees the sizes of stored outcomes can tell how repetitive they are. Where
    /// an attacker chooses part of an answer and watches the store, do not combine the two.
    pub fn compress_above(mut self, bytes: usize) -> Self {
        self.squeeze_above = Some(bytes);
        self
    }
}

/// The length and the frame; `None` where nothing would be gained.
pub(super) fn squeezed(plain: &[u8]) -> Option<Vec<u8>> {
    let frame = zstd::bulk::compress(plain, LEVEL).ok()?;
    let mut squeezed = Vec::with_capacity(4 + frame.len());
    squeezed.extend_from_slice(&u32::try_from(plain.len()).ok()?.to_be_bytes());
    squeezed.extend_from_slice(&frame);
    (squeezed.len() < plain.len()).then_some(squeezed)
}

/// The way back. However much the frame would expand to, no more than it says itself is made, and no more than
/// `bytes_max`.
pub(super) fn unsqueezed(id: &IntentId, squeezed: &[u8], bytes_max: usize) -> Result<Vec<u8>, StoreError> {
    let (len, frame) = squeezed.split_first_chunk::<4>().ok_or_else(|| corrupt(id, "it ends too early"))?;
    let len = u32::from_be_bytes(*len) as usize;
    if len > bytes_max {
        return Err(corrupt(id, "it says it expands to more than an outcome may have"));
    }
    let plain = zstd::bulk::decompress(frame, len)
        .map_err(|error| corrupt(id, "it does not expand to what it says").with_source(error))?;
    if plain.len() != len {
        return Err(corrupt(id, "it does not expand to what it says"));
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;

    #[test]
    fn a_bomb_is_refused_in_bounded_memory() {
        let id = IntentId::from_bytes([1; 32]);
        let huge = vec![0u8; 64 << 20];
        let frame = zstd::bulk::compress(&huge, LEVEL).unwrap();
        drop(huge);
        assert!(frame.len() < 10_000, "{}", frame.len());
        for said in [0u32, 1, 1 << 20, 64 << 20, u32::MAX] {
            let bomb = [&said.to_be_bytes()[..], &frame].concat();
            let error = unsqueezed(&id, &bomb, 4 << 20).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{said}");
        }
        for len in 0..8 {
            assert!(unsqueezed(&id, &frame[..len], 4 << 20).is_err());
        }
    }

    #[test]
    fn what_is_squeezed_comes_back_and_noise_is_left_alone() {
        let id = IntentId::from_bytes([1; 32]);
        let text = b"{\"amount\":4200}".repeat(100);
        let squeezed = squeezed(&text).unwrap();
        assert!(squeezed.len() < text.len() / 10);
        assert_eq!(unsqueezed(&id, &squeezed, 4 << 20).unwrap(), text);
        assert!(super::squeezed(&[7, 93, 1, 200]).is_none());
    }
}
