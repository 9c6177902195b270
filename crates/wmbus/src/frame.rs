//! Link frames (EN 13757-4, 12): formats A and B with their checksums, and frames whose receiver
//! has taken the checksums out already.
//!
//! What the payload means is `layers`' business; how chips become these bytes, `chips`'.

use crate::address::Address;
use crate::crc::crc;

/// Bytes of a frame before its payload: length, control, address.
pub const HEADER_BYTES: usize = 10;
/// Maximum length of a frame on the wire in bytes: format A with 16 blocks' checksums.
pub const MAX_WIRE_BYTES: usize = 256 + 2 * 17;
const BLOCK_BYTES: usize = 16;
const CRC_BYTES: usize = 2;
/// Bytes that receivers leave behind a frame: its last checksum, link quality, level.
const MAX_TRAILING_BYTES: usize = 3;
/// Format B's first checksum covers what comes before this place.
const FORMAT_B_FIRST: usize = 128;

/// Arrangement of checksums in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A checksum after the first 10 bytes and after each 16 more.
    A,
    /// A checksum at the end, and one at byte 126 of longer frames.
    B,
    /// None: the receiver checked and removed them.
    Stripped,
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// There is less than the length field promises.
    #[error(
        "truncated frame: {got} bytes, but its length field asks for {want}; move the receiver nearer"
    )]
    Truncated {
        /// Bytes there are.
        got: usize,
        /// Bytes the length field asks for.
        want: usize,
    },
    /// There is more than the length field promises.
    #[error("{extra} bytes after the end of the frame; check the receiver's settings")]
    TooLong {
        /// Bytes that should not be there.
        extra: usize,
    },
    /// A length field below the least a frame needs.
    #[error("length field {0} is too small for a frame")]
    LengthField(u8),
    /// A checksum does not fit.
    #[error("checksum of block {block} is wrong: the frame was damaged on the air")]
    Checksum {
        /// Number of the block, from 1.
        block: usize,
    },
}

/// A frame without checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The C field: what the sender wants, such as 0x44 (SND-NR).
    pub control: u8,
    /// Whose frame it is.
    pub address: Address,
    /// From the CI field on.
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Reads a frame without checksums, as [`strip`] gives it.
    ///
    /// # Errors
    /// Its length field disagrees with its length.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let Some((&length, rest)) = bytes.split_first() else {
            return Err(FrameError::Truncated { got: 0, want: HEADER_BYTES + 1 });
        };
        let want = usize::from(length) + 1;
        if want < HEADER_BYTES {
            return Err(FrameError::LengthField(length));
        }
        if bytes.len() < want {
            return Err(FrameError::Truncated { got: bytes.len(), want });
        }
        if bytes.len() > want {
            return Err(FrameError::TooLong { extra: bytes.len() - want });
        }
        match rest {
            [control, m0, m1, i0, i1, i2, i3, version, medium, payload @ ..] => Ok(Self {
                control: *control,
                address: Address::from_link([*m0, *m1, *i0, *i1, *i2, *i3, *version, *medium]),
                payload,
            }),
            _ => Err(FrameError::LengthField(length)),
        }
    }

    /// The frame's bytes with a length field and without checksums.
    ///
    /// A payload of more than 246 bytes does not fit and is cut: none is made here.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let payload = &self.payload[..self.payload.len().min(usize::from(u8::MAX) - 9)];
        let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
        bytes.push((HEADER_BYTES - 1 + payload.len()) as u8);
        bytes.push(self.control);
        bytes.extend(self.address.to_link());
        bytes.extend(payload);
        bytes
    }
}

/// Number of bytes that a frame with this length field has on the wire.
#[must_use]
pub fn wire_bytes(length: u8, format: Format) -> usize {
    let bare = usize::from(length) + 1;
    match format {
        Format::A => {
            bare + CRC_BYTES * (1 + bare.saturating_sub(HEADER_BYTES).div_ceil(BLOCK_BYTES))
        }
        Format::B | Format::Stripped => bare,
    }
}

/// Checks the checksums of a whole frame and takes them out, into `out`.
///
/// # Errors
/// The frame is too short, too long or damaged; `out` is left empty then.
pub fn strip(bytes: &[u8], format: Format, out: &mut Vec<u8>) -> Result<(), FrameError> {
    out.clear();
    let stripped = match format {
        Format::Stripped => Frame::parse(bytes).map(|_| out.extend_from_slice(bytes)),
        Format::A => whole(bytes, format).and_then(|()| strip_a(bytes, out)),
        Format::B => whole(bytes, format).and_then(|()| strip_b(bytes, out)),
    };
    if stripped.is_err() {
        out.clear();
    }
    stripped
}

/// Like [`strip`], for receivers that do not say which format they give: length or checksums show format A, and the
/// last checksum format B. A few bytes behind the frame, as some receivers leave them, are left out.
///
/// # Errors
/// No format fits; the error is that of the likeliest.
pub fn strip_any(bytes: &[u8], out: &mut Vec<u8>) -> Result<Format, FrameError> {
    let Some(&length) = bytes.first() else {
        return strip(bytes, Format::Stripped, out).map(|()| Format::Stripped);
    };
    let ends = |format| {
        let end = wire_bytes(length, format);
        let is_near = (end..=end + MAX_TRAILING_BYTES).contains(&bytes.len());
        is_near.then(|| &bytes[..end])
    };
    let b = ends(Format::B).filter(|frame| strip(frame, Format::B, out).is_ok());
    let (format, frame) = if begins_as_a(bytes) || bytes.len() == wire_bytes(length, Format::A) {
        (Format::A, ends(Format::A).unwrap_or(bytes))
    } else if let Some(frame) = b {
        (Format::B, frame)
    } else {
        (Format::Stripped, ends(Format::Stripped).unwrap_or(bytes))
    };
    strip(frame, format, out).map(|()| format)
}

/// Whether the first blocks fit checksums of format A, wherever the frame is cut. One checksum alone could fit by chance,
/// so two are required where there is room for them.
fn begins_as_a(bytes: &[u8]) -> bool {
    const HEAD: usize = HEADER_BYTES + CRC_BYTES;
    const NEXT: usize = HEAD + BLOCK_BYTES + CRC_BYTES;
    let fits = |block: &[u8]| open(block, 1, &mut Vec::new()).is_ok();
    bytes.get(..HEAD).is_some_and(fits) && bytes.get(HEAD..NEXT).is_none_or(fits)
}

/// Puts the checksums of a format into a frame without any.
///
/// # Errors
/// The bytes are no frame, or too many for format B, whose length field counts checksums.
pub fn dress(bare: &[u8], format: Format) -> Result<Vec<u8>, FrameError> {
    let frame = Frame::parse(bare)?;
    let mut out = Vec::with_capacity(MAX_WIRE_BYTES);
    match format {
        Format::Stripped => out.extend_from_slice(bare),
        Format::A => {
            let (head, rest) = bare.split_at(HEADER_BYTES);
            seal(&mut out, head);
            rest.chunks(BLOCK_BYTES).for_each(|block| seal(&mut out, block));
        }
        Format::B => {
            let first = FORMAT_B_FIRST - CRC_BYTES;
            let sums = if bare.len() > first { 2 } else { 1 };
            let total = bare.len() + CRC_BYTES * sums;
            let length = u8::try_from(total - 1)
                .map_err(|_| FrameError::TooLong { extra: frame.payload.len() })?;
            let mut bare = bare.to_vec();
            bare[0] = length;
            bare.chunks(first).for_each(|block| seal(&mut out, block));
        }
    }
    Ok(out)
}

fn seal(out: &mut Vec<u8>, block: &[u8]) {
    out.extend_from_slice(block);
    out.extend(crc(block).to_be_bytes());
}

/// Whether there are as many bytes as the length field asks for.
fn whole(bytes: &[u8], format: Format) -> Result<(), FrameError> {
    let length = bytes.first().copied().unwrap_or(0);
    let least = match format {
        Format::B => HEADER_BYTES + CRC_BYTES,
        Format::A | Format::Stripped => HEADER_BYTES,
    };
    let want = wire_bytes(length, format);
    if bytes.is_empty() {
        Err(FrameError::Truncated { got: 0, want: least })
    } else if usize::from(length) + 1 < least {
        Err(FrameError::LengthField(length))
    } else if bytes.len() < want {
        Err(FrameError::Truncated { got: bytes.len(), want })
    } else if bytes.len() > want {
        Err(FrameError::TooLong { extra: bytes.len() - want })
    } else {
        Ok(())
    }
}

fn strip_a(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), FrameError> {
    let (head, rest) = bytes.split_at(HEADER_BYTES + CRC_BYTES);
    open(head, 1, out)?;
    for (index, block) in rest.chunks(BLOCK_BYTES + CRC_BYTES).enumerate() {
        open(block, index + 2, out)?;
    }
    Ok(())
}

fn strip_b(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), FrameError> {
    for (index, block) in bytes.chunks(FORMAT_B_FIRST).enumerate() {
        open(block, index + 1, out)?;
    }
    // The length field counted the checksums; in a frame without them it must not.
    out[0] = (out.len() - 1) as u8;
    Ok(())
}

fn open(block: &[u8], number: usize, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let wrong = FrameError::Checksum { block: number };
    let (data, sum) = block.split_last_chunk::<CRC_BYTES>().ok_or(wrong)?;
    if crc(data) != u16::from_be_bytes(*sum) {
        return Err(wrong);
    }
    out.extend_from_slice(data);
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(payload: &[u8]) -> Vec<u8> {
        let address = Address::from_link([0x2D, 0x2C, 1, 2, 3, 4, 5, 7]);
        Frame { control: 0x44, address, payload }.to_bytes()
    }

    proptest! {
        #[test]
        fn what_is_dressed_is_stripped_again(payload in prop::collection::vec(any::<u8>(), 1..=242)) {
            let bare = frame(&payload);
            let mut out = Vec::new();
            for format in [Format::A, Format::B, Format::Stripped] {
                let wire = dress(&bare, format).unwrap();
                prop_assert_eq!(wire.len(), wire_bytes(wire[0], format));
                strip(&wire, format, &mut out).unwrap();
                prop_assert_eq!(&out, &bare);
                if format != Format::Stripped {
                    prop_assert_eq!(strip_any(&wire, &mut out), Ok(format));
                    prop_assert_eq!(&out, &bare);
                }
            }
        }

        #[test]
        fn a_flipped_bit_is_noticed(payload in prop::collection::vec(any::<u8>(), 1..=200), at: prop::sample::Index, bit in 0..8_u8) {
            let mut out = Vec::new();
            for format in [Format::A, Format::B] {
                let mut wire = dress(&frame(&payload), format).unwrap();
                let at = at.index(wire.len());
                wire[at] ^= 1_u8 << bit;
                prop_assert!(strip(&wire, format, &mut out).is_err());
                prop_assert!(out.is_empty());
            }
        }

        // With a payload of one byte, half of the first checksum would pass for it.
        #[test]
        fn a_cut_frame_is_noticed(payload in prop::collection::vec(any::<u8>(), 2..=200), at: prop::sample::Index) {
            let mut out = Vec::new();
            for format in [Format::A, Format::B, Format::Stripped] {
                let wire = dress(&frame(&payload), format).unwrap();
                let cut = at.index(wire.len());
                prop_assert!(strip(&wire[..cut], format, &mut out).is_err());
                prop_assert!(strip_any(&wire[..cut], &mut out).is_err());
            }
        }
    }

    #[test]
    fn length_fields_that_cannot_be_are_refused() {
        let mut out = Vec::new();
        assert_eq!(strip_any(&[3, 1, 2, 3], &mut out), Err(FrameError::LengthField(3)));
        assert!(matches!(strip_any(&[], &mut out), Err(FrameError::Truncated { .. })));
        assert!(matches!(dress(&frame(&[0; 246]), Format::B), Err(FrameError::TooLong { .. })));
        assert!(dress(&frame(&[0; 246]), Format::A).is_ok());
    }
}
