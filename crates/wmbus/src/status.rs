//! What a meter says of itself in a header's status byte (EN 13757-7, 7.5.6).

use std::fmt;

/// The status byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(u8);

impl Status {
    pub(crate) const fn new(byte: u8) -> Self {
        Self(byte)
    }

    /// The byte itself; its upper three bits are the manufacturer's.
    #[must_use]
    pub const fn byte(self) -> u8 {
        self.0
    }

    /// Words for the bits the standard defines.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        let application = match self.0 & 0x03 {
            0 => None,
            1 => Some("busy"),
            2 => Some("error"),
            _ => Some("alarm"),
        };
        let flag = |bit: u8, word| (self.0 & bit != 0).then_some(word);
        let flags =
            [flag(0x04, "power low"), flag(0x08, "permanent error"), flag(0x10, "temporary error")];
        application.into_iter().chain(flags.into_iter().flatten())
    }
}

/// `ok`, or words and the manufacturer's bits, such as `alarm, maker 60`.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("ok");
        }
        let mut between = "";
        for word in self.words() {
            write!(f, "{between}{word}")?;
            between = ", ";
        }
        match self.0 & 0xE0 {
            0 => Ok(()),
            manufacturers => write!(f, "{between}maker {manufacturers:02X}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_have_words() {
        let shown = |byte| Status::new(byte).to_string();
        assert_eq!(shown(0), "ok");
        assert_eq!(shown(0x63), "alarm, maker 60");
        assert_eq!(shown(0x1C), "power low, permanent error, temporary error");
        assert_eq!(shown(0xC0), "maker C0");
    }
}
