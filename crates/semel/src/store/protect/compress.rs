//! Compression of outcomes (zstd).

use super::envelope::{Protection, Unreadable};

/// Fast, and close to the best ratio for JSON.
const LEVEL: i32 = 3;

impl Protection {
    /// Compresses outcomes of more than this many bytes, headers included, where that makes them smaller.
    ///
    /// Outcomes are compressed before they are encrypted, so the size of a stored outcome shows how repetitive it is.
    /// Do not combine the two where an attacker chooses part of an answer and can watch the store.
    pub fn compress_above(mut self, bytes: usize) -> Self {
        self.compress_above = Some(bytes);
        self
    }
}

/// The length and the zstd frame; `None` if that is not smaller.
pub(super) fn compress(plain: &[u8]) -> Option<Vec<u8>> {
    let frame = zstd::bulk::compress(plain, LEVEL).ok()?;
    let mut compressed = Vec::with_capacity(4 + frame.len());
    compressed.extend_from_slice(&u32::try_from(plain.len()).ok()?.to_be_bytes());
    compressed.extend_from_slice(&frame);
    (compressed.len() < plain.len()).then_some(compressed)
}

/// The inverse. Never expands a frame beyond the length stored with it, nor beyond `bytes_max` (decompression bomb).
pub(super) fn decompress(compressed: &[u8], bytes_max: usize) -> Result<Vec<u8>, Unreadable> {
    let (len, frame) =
        compressed.split_first_chunk::<4>().ok_or_else(|| Unreadable::corrupt("it is truncated"))?;
    let len = u32::from_be_bytes(*len) as usize;
    if len > bytes_max {
        return Err(Unreadable::corrupt("its stored length is more than may be stored"));
    }
    let wrong = || Unreadable::corrupt("it does not decompress to its stored length");
    let plain = zstd::bulk::decompress(frame, len).map_err(|error| wrong().with_source(error))?;
    if plain.len() != len {
        return Err(wrong());
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;

    #[test]
    fn a_bomb_is_refused_in_bounded_memory() {
        let huge = vec![0u8; 64 << 20];
        let frame = zstd::bulk::compress(&huge, LEVEL).unwrap();
        drop(huge);
        assert!(frame.len() < 10_000, "{}", frame.len());
        for said in [0u32, 1, 1 << 20, 64 << 20, u32::MAX] {
            let bomb = [&said.to_be_bytes()[..], &frame].concat();
            let error = decompress(&bomb, 4 << 20).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Corrupt, "{said}");
        }
        for len in 0..8 {
            assert!(decompress(&frame[..len], 4 << 20).is_err());
        }
    }

    #[test]
    fn what_is_squeezed_comes_back_and_noise_is_left_alone() {
        let text = b"{\"amount\":4200}".repeat(100);
        let compressed = compress(&text).unwrap();
        assert!(compressed.len() < text.len() / 10);
        assert_eq!(decompress(&compressed, 4 << 20).unwrap(), text);
        assert!(compress(&[7, 93, 1, 200]).is_none());
    }
}
