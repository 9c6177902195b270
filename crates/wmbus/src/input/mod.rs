//! Receivers' streams: bytes from a serial port, a file or a pipe, as frames.
//!
//! An [`Input`] is fed bytes as they come and gives frames, or what is wrong with one; after damage it
//! finds the next frame by itself. It holds at most one frame or line. Which kind of stream it is can
//! be told, or found out from the first byte.

mod amb8465;
mod im871a;
mod lines;

use crate::chips::ChipError;
use crate::received::Received;

/// Maximum length of a line in characters: the longest frame in hexadecimal, twice as long as chips, and what
/// receivers write beside it.
pub const MAX_LINE_BYTES: usize = 2048;

/// Kind of stream that a receiver gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Found out from the first byte: one of the sticks' frames, or lines of any kind.
    Auto,
    /// `rtl_wmbus`: `MODE;CRC_OK;3OUTOF6_OK;TIME;RSSI;RSSI;ID;0xHEX`.
    RtlWmbus,
    /// Frames of IMST's iM871A and iM170A sticks.
    Im871a,
    /// Frames of Amber's (Würth's) AMB8465 sticks.
    Amb8465,
    /// CUL and other sticks with culfw: `bHEX` with link quality and level behind it.
    Cul,
    /// Frames in hexadecimal, one a line, with or without checksums.
    Hex,
    /// Lines of any of the kinds.
    Lines,
    /// Raw chips: `MODE HEX`, such as `T 5555543D…`, the mode being S, T, C or N.
    Chips,
}

/// Fault in a part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// More than a line can have.
    #[error("a line of more than {MAX_LINE_BYTES} characters: is this the right kind of input?")]
    LineTooLong,
    /// Not what the kind of stream has.
    #[error("not a line of {0}: is this the right kind of input?")]
    NotALine(&'static str),
    /// Not whole bytes in hexadecimal.
    #[error("not hexadecimal, or an odd number of digits")]
    NotHex,
    /// The receiver itself found the frame damaged.
    #[error("the receiver found a wrong checksum")]
    ReceiverChecksum,
    /// Damaged between stick and computer.
    #[error("{0} bytes that are not a frame of the stick; looking for the next")]
    OutOfStep(usize),
    /// Chips that are no frame.
    #[error(transparent)]
    Chips(#[from] ChipError),
}

impl InputError {
    /// A word for scripts.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::ReceiverChecksum => "checksum",
            _ => "input",
        }
    }
}

/// The frame in one line of text of any kind.
///
/// # Errors
/// The line contains none.
pub fn line(text: &str) -> Result<Received, InputError> {
    lines::parse(Kind::Lines, text.as_bytes()).unwrap_or(Err(InputError::NotHex))
}

/// Result of an attempt to parse a buffer.
pub(crate) enum Step {
    /// Nothing yet: more bytes are needed.
    More,
    /// This many bytes are done with, and gave something or nothing.
    Done(usize, Option<Result<Received, InputError>>),
}

/// A stream being read.
#[derive(Debug)]
pub struct Input {
    kind: Kind,
    buffer: Vec<u8>,
    /// Number of bytes at the buffer's beginning that are processed.
    done: usize,
    /// Whether what comes up to the end of the line belongs to one that was too long.
    skipping: bool,
    ended: bool,
}

impl Input {
    /// A stream of this kind.
    #[must_use]
    pub const fn new(kind: Kind) -> Self {
        Self { kind, buffer: Vec::new(), done: 0, skipping: false, ended: false }
    }

    /// Takes bytes that came. Call [`Input::next`] until it gives nothing before feeding more; what is
    /// held is bounded by that.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.done);
        self.done = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Says that no more bytes will come: a last line without an end counts.
    pub const fn end(&mut self) {
        self.ended = true;
    }

    /// The next frame, or what is wrong with the next piece; `None` until more bytes come.
    #[allow(clippy::should_implement_trait, reason = "it goes on after `None`")]
    pub fn next(&mut self) -> Option<Result<Received, InputError>> {
        while let Some(&first) = self.buffer.get(self.done) {
            if self.kind == Kind::Auto {
                if first.is_ascii_whitespace() {
                    self.done += 1;
                    continue;
                }
                self.kind = guess(first);
            }
            let step = match self.kind {
                Kind::Im871a => im871a::step(&self.buffer[self.done..]),
                Kind::Amb8465 => amb8465::step(&self.buffer[self.done..]),
                _ => self.line(),
            };
            let Step::Done(used, outcome) = step else { return None };
            self.done += used;
            if outcome.is_some() {
                return outcome;
            }
        }
        None
    }

    /// The next line, unless it is too long.
    fn line(&mut self) -> Step {
        let rest = &self.buffer[self.done..];
        let (line, used) = match rest.iter().position(|byte| *byte == b'\n') {
            Some(end) => (&rest[..end], end + 1),
            None if self.ended => (rest, rest.len()),
            None if rest.len() <= MAX_LINE_BYTES => return Step::More,
            None => {
                let said = std::mem::replace(&mut self.skipping, true);
                let error = (!said).then_some(Err(InputError::LineTooLong));
                return Step::Done(rest.len(), error);
            }
        };
        let outcome = if std::mem::take(&mut self.skipping) {
            None
        } else if line.len() > MAX_LINE_BYTES {
            Some(Err(InputError::LineTooLong))
        } else {
            lines::parse(self.kind, line)
        };
        Step::Done(used, outcome)
    }
}

/// Guesses the kind of a stream that begins with this byte. Each line shows its kind itself.
const fn guess(first: u8) -> Kind {
    match first {
        im871a::START => Kind::Im871a,
        amb8465::START => Kind::Amb8465,
        _ => Kind::Lines,
    }
}

/// Number of bytes before the next one that may begin a frame; at least one, the first being none.
fn out_of_step(bytes: &[u8], start: u8) -> Step {
    let next = bytes.iter().skip(1).position(|byte| *byte == start);
    let skipped = next.map_or(bytes.len(), |next| next + 1);
    Step::Done(skipped, Some(Err(InputError::OutOfStep(skipped))))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
