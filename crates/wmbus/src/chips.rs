//! Chips, the signal's smallest pieces, as frames: line codes and synchronisation of EN 13757-4's modes
//! S, T, C (868 MHz) and N (169 MHz), for receivers that hand over what they heard undecoded.
//!
//! Chips come packed eight to a byte, first chip in the highest bit, and may begin and end anywhere:
//! the synchronisation word is looked for, in either polarity. Checksums are `frame`'s.

use crate::frame::{Format, MAX_WIRE_BYTES, strip, wire_bytes};

/// Maximum number of chips that are examined: the longest frame, twice as long in chips, and a long preamble.
pub const MAX_CHIP_BYTES: usize = 2 * MAX_WIRE_BYTES + 100;

/// A radio mode's line code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Stationary: Manchester.
    S,
    /// Frequent transmit: three chips of six, from meters.
    T,
    /// Compact: as it is.
    C,
    /// Narrow band, 169 MHz: as it is.
    N,
}

/// Why chips are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChipError {
    /// No synchronisation word.
    #[error("no synchronisation word of this mode among the chips: is it the right mode?")]
    NoSync,
    /// Six chips that stand for nothing, or two equal ones in Manchester code.
    #[error("damaged on the air: byte {0} has invalid chips")]
    Code(usize),
    /// Fewer chips than the frame asks for.
    #[error("truncated: chips for {got} bytes of {want}")]
    Truncated {
        /// Bytes there are.
        got: usize,
        /// Bytes the frame has.
        want: usize,
    },
}

/// The six chips of each half byte (EN 13757-4, table 11).
const THREE_OF_SIX: [u8; 16] = [
    0b010110, 0b001101, 0b001110, 0b001011, 0b011100, 0b011001, 0b011010, 0b010011, 0b101100,
    0b100101, 0b100110, 0b100011, 0b110100, 0b110001, 0b110010, 0b101001,
];

/// A synchronisation word: its chips, how many, and which format follows.
struct Sync(u32, u32, Format);

impl Mode {
    /// Letter of the mode.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::S => "S",
            Self::T => "T",
            Self::C => "C",
            Self::N => "N",
        }
    }

    const fn syncs(self) -> &'static [Sync] {
        match self {
            Self::S => &[Sync(0b00_0111_0110_1001_0110, 18, Format::A)],
            Self::T => &[Sync(0b00_0011_1101, 10, Format::A)],
            Self::C => &[Sync(0x543D_54CD, 32, Format::A), Sync(0x543D_543D, 32, Format::B)],
            Self::N => &[Sync(0xF68D, 16, Format::A), Sync(0xF672, 16, Format::B)],
        }
    }

    const fn chips_a_byte(self) -> usize {
        match self {
            Self::S => 16,
            Self::T => 12,
            Self::C | Self::N => 8,
        }
    }

    /// The byte these chips stand for.
    fn byte(self, chips: u32) -> Option<u8> {
        match self {
            Self::C | Self::N => Some(chips as u8),
            Self::T => {
                let half =
                    |six: u32| THREE_OF_SIX.iter().position(|code| u32::from(*code) == six & 0x3F);
                Some((half(chips >> 6)? << 4 | half(chips)?) as u8)
            }
            Self::S => (0..8).rev().try_fold(0, |byte, pair| match chips >> (2 * pair) & 3 {
                0b01 => Some(byte << 1 | 1),
                0b10 => Some(byte << 1),
                _ => None,
            }),
        }
    }

    fn chips(self, byte: u8) -> u32 {
        match self {
            Self::C | Self::N => u32::from(byte),
            Self::T => {
                let half = |half: u8| u32::from(THREE_OF_SIX[usize::from(half & 0x0F)]);
                half(byte >> 4) << 6 | half(byte)
            }
            Self::S => (0..8)
                .rev()
                .fold(0, |chips, bit| chips << 2 | if byte >> bit & 1 != 0 { 1 } else { 2 }),
        }
    }
}

/// Finds a frame among chips: its bytes with checksums, and their format. A word of synchronisation
/// may stand in the data by chance, so that a frame whose checksums fit goes before one that came first.
///
/// # Errors
/// There is none, or not all of it.
pub fn decode(mode: Mode, packed: &[u8]) -> Result<(Vec<u8>, Format), ChipError> {
    let packed = &packed[..packed.len().min(MAX_CHIP_BYTES)];
    let mut last = ChipError::NoSync;
    let mut damaged = None;
    let mut bare = Vec::new();
    for invert in [false, true] {
        let chips = Chips { packed, invert };
        let mut seen = 0_u32;
        for at in 0..chips.len() {
            seen = seen << 1 | chips.at(at);
            for Sync(word, width, format) in mode.syncs() {
                let mask = u32::MAX >> (32 - width);
                if at + 1 < *width as usize || seen & mask != *word {
                    continue;
                }
                match frame(mode, chips, at + 1, *format) {
                    Ok(bytes) if strip(&bytes, *format, &mut bare).is_ok() => {
                        return Ok((bytes, *format));
                    }
                    Ok(bytes) => damaged = damaged.or(Some((bytes, *format))),
                    // A word found by chance fails soon; the one that went furthest is told.
                    Err(error) => last = further(last, error),
                }
            }
        }
    }
    damaged.ok_or(last)
}

const fn progress(error: ChipError) -> usize {
    match error {
        ChipError::NoSync => 0,
        ChipError::Code(bytes) | ChipError::Truncated { got: bytes, .. } => bytes + 1,
    }
}

const fn further(one: ChipError, other: ChipError) -> ChipError {
    if progress(other) > progress(one) { other } else { one }
}

fn frame(mode: Mode, chips: Chips<'_>, start: usize, format: Format) -> Result<Vec<u8>, ChipError> {
    let width = mode.chips_a_byte();
    let mut bytes = Vec::new();
    let mut want = 1;
    while bytes.len() < want {
        let from = start + bytes.len() * width;
        if from + width > chips.len() {
            return Err(ChipError::Truncated { got: bytes.len(), want });
        }
        let group = (from..from + width).fold(0, |group, at| group << 1 | chips.at(at));
        bytes.push(mode.byte(group).ok_or(ChipError::Code(bytes.len()))?);
        want = wire_bytes(bytes[0], format);
    }
    Ok(bytes)
}

#[derive(Clone, Copy)]
struct Chips<'a> {
    packed: &'a [u8],
    invert: bool,
}

impl Chips<'_> {
    const fn len(self) -> usize {
        self.packed.len() * 8
    }

    fn at(self, place: usize) -> u32 {
        let chip = self.packed[place / 8] >> (7 - place % 8) & 1;
        u32::from(chip) ^ u32::from(self.invert)
    }
}

/// The chips of a frame with checksums, with preamble and synchronisation; `None` if the mode does not
/// have the format.
#[must_use]
pub fn encode(mode: Mode, wire: &[u8], format: Format) -> Option<Vec<u8>> {
    const PREAMBLE_PAIRS: usize = 19;
    let Sync(word, width, _) = mode.syncs().iter().find(|sync| sync.2 == format)?;
    let mut chips = [false, true].repeat(PREAMBLE_PAIRS);
    let mut push = |value: u32, width: u32| {
        chips.extend((0..width).rev().map(|bit| value >> bit & 1 != 0));
    };
    push(*word, *width);
    wire.iter().for_each(|byte| push(mode.chips(*byte), mode.chips_a_byte() as u32));
    let pack = |eight: &[bool]| {
        (0..8).fold(0, |byte, at| byte << 1 | u8::from(eight.get(at) == Some(&true)))
    };
    Some(chips.chunks(8).map(pack).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::frame::{Frame, dress};
    use proptest::prelude::*;

    fn wire(payload: &[u8], format: Format) -> Vec<u8> {
        let address = Address::from_link([0x2D, 0x2C, 1, 2, 3, 4, 5, 7]);
        dress(&Frame { control: 0x44, address, payload }.to_bytes(), format).unwrap()
    }

    const ALL: [(Mode, Format); 6] = [
        (Mode::S, Format::A),
        (Mode::T, Format::A),
        (Mode::C, Format::A),
        (Mode::C, Format::B),
        (Mode::N, Format::A),
        (Mode::N, Format::B),
    ];

    proptest! {
        #[test]
        fn chips_are_read_back(payload in prop::collection::vec(any::<u8>(), 1..=200), invert: bool, late in 0..3_usize) {
            for (mode, format) in ALL {
                let wire = wire(&payload, format);
                let mut chips = encode(mode, &wire, format).unwrap();
                if invert {
                    chips.iter_mut().for_each(|byte| *byte = !*byte);
                }
                prop_assert_eq!(decode(mode, &chips[late..]), Ok((wire.clone(), format)));
                prop_assert_ne!(decode(mode, &chips[..chips.len() - 2]), Ok((wire, format)));
            }
        }
    }

    #[test]
    fn the_codes_are_the_standards() {
        assert!(THREE_OF_SIX.iter().all(|code| code.count_ones() == 3));
        assert_eq!(Mode::T.chips(0x44), 0b0111_0001_1100);
        assert_eq!(Mode::S.chips(0x0F), 0xAA55);
        assert!(encode(Mode::T, &[0], Format::B).is_none());
    }

    #[test]
    fn chips_that_are_none_say_how_far_they_went() {
        let whole = encode(Mode::T, &wire(&[1; 30], Format::A), Format::A).unwrap();
        let got = |error| match error {
            Err(ChipError::Truncated { got, .. }) => got,
            other => panic!("{other:?}"),
        };
        assert!(got(decode(Mode::T, &whole[..40])) > 15);
        let mut damaged = whole;
        damaged[30] ^= 0xFF;
        assert!(matches!(decode(Mode::T, &damaged), Err(ChipError::Code(10..=20))));
        assert_eq!(decode(Mode::S, &[0; 50]), Err(ChipError::NoSync));
        assert_eq!(decode(Mode::N, &[]), Err(ChipError::NoSync));
    }
}
