//! Choices off a string of bytes; zeros when it has ended, so that every string is a script.

use fulmar_mqtt::PacketId;

#[derive(Clone, Copy, Debug)]
pub struct Script<'a>(pub &'a [u8]);

impl<'a> Script<'a> {
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// At most `most` bytes.
    pub fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// As many bytes as the next byte says.
    pub fn bytes(&mut self) -> &'a [u8] {
        let most = usize::from(self.byte());
        self.take(most)
    }

    pub fn any_id(&mut self) -> PacketId {
        let value = u16::from_be_bytes([self.byte(), self.byte()]);
        PacketId::new(value).unwrap_or(PacketId::FIRST)
    }
}
