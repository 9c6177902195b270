//! Looks for bytes that must not be in a text. Eight at a time, the last of them overlapping what precedes them: topics are
//! short and nearly always right.

/// Whether one of the bytes `wanted` is among `bytes`.
#[inline]
pub(crate) fn has<const N: usize>(bytes: &[u8], wanted: [u8; N]) -> bool {
    let Some(last) = bytes.last_chunk() else {
        return bytes.iter().any(|byte| wanted.contains(byte));
    };
    let (blocks, _) = bytes.as_chunks();
    let any =
        |block: &[u8; 8]| wanted.iter().fold(0, |found, byte| found | block_has(*block, *byte));
    blocks.iter().fold(any(last), |found, block| found | any(block)) != 0
}

/// Not zero if one of the eight bytes is `wanted`: what is subtracted from a byte that is zero borrows.
fn block_has(block: [u8; 8], wanted: u8) -> u64 {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let zero_if_wanted = u64::from_ne_bytes(block) ^ u64::from_ne_bytes([wanted; 8]);
    zero_if_wanted.wrapping_sub(ONES) & !zero_if_wanted & (ONES << 7)
}
