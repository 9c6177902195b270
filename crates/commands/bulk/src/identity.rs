//! Identities of senders and receivers.

/// A random identity of a receiver, and a random number beside it.
pub(crate) fn identity() -> anyhow::Result<(u32, u16)> {
    let [a, b, c, d, e, f] = fulmar_certs::random()?;
    // 0 and the greatest number are reserved.
    Ok((u32::from_be_bytes([a, b, c, d]).clamp(1, u32::MAX - 1), u16::from_be_bytes([e, f])))
}
